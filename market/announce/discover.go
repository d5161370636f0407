package announce

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/gpufair/gpufair/p2p"
)

// Times and sizes of what the index is asked and told (spec: p2p, section 5).
const (
	wordEvery     = 20 * time.Minute // at least, between two words; an offer is renewed every 30 minutes, and a word with it
	wordAgain     = time.Minute      // after nobody could be told
	wordMax       = time.Minute      // for one
	lookFirst     = time.Minute      // after the start, once peers were met
	lookEvery     = 30 * time.Minute
	lookPause     = 10 * time.Second // between two looks, whoever asks for them
	lookMax       = 6 * time.Second  // for one: half of it in the index, half for those found there
	lookedUp      = 64               // machines of one look
	lookedUpAsked = 4                // of them asked for their book
)

// Discover looks in the index for machines that offer something and that the book does not know, asks a few at random for their books, and
// says of how many of these the book has an offer now. It takes six seconds at most; where the last look was a moment ago, there is none.
func (b *Board) Discover(ctx context.Context) int {
	if b.index == nil {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, lookMax)
	defer cancel()
	select {
	case b.looking <- struct{}{}:
		defer func() { <-b.looking }()
	case <-ctx.Done():
		return 0
	}
	if now := time.Now(); now.Sub(b.looked) < lookPause {
		return 0
	}
	var unknown []p2p.PeerAddr
	inIndex, stop := context.WithTimeout(ctx, lookMax/2)
	for _, to := range b.index.FindWords(inIndex, lookedUp) {
		if _, ok := b.book.Get(to.Peer, time.Now()); !ok && to.Peer != b.net.Self() {
			unknown = append(unknown, to)
		}
	}
	stop()
	rand.Shuffle(len(unknown), func(i, j int) { unknown[i], unknown[j] = unknown[j], unknown[i] })
	unknown = unknown[:min(len(unknown), lookedUpAsked)]
	var wg sync.WaitGroup
	for _, to := range unknown {
		wg.Go(func() {
			err := b.net.Connect(ctx, to)
			if err == nil {
				_, err = b.Sync(ctx, to.Peer)
			}
			if err != nil {
				b.log.Debug("a machine of the index gave no offers", "peer", to.Peer, "err", err)
			}
		})
	}
	wg.Wait()
	b.looked = time.Now()
	found := 0
	for _, to := range unknown {
		if _, ok := b.book.Get(to.Peer, b.looked); ok {
			found++
		}
	}
	return found
}

// lookAround asks the index now and then, so that a machine that gossip does not reach knows offers before somebody searches.
func (b *Board) lookAround(ctx context.Context) error {
	if b.index == nil {
		return nil
	}
	for wait := lookFirst; sleep(ctx, jitter(wait)); wait = lookEvery {
		b.Discover(ctx)
	}
	return nil
}

// leaveWords leaves word in the index when an offer goes out, which a publisher repeats every half of its life, until ctx ends.
func (p *Publisher) leaveWords(ctx context.Context) {
	if p.board.index == nil {
		return
	}
	for last := (time.Time{}); ; {
		select {
		case <-ctx.Done():
			return
		case <-p.word:
		}
		for _, offers := p.Current(); offers && time.Since(last) >= wordEvery; _, offers = p.Current() {
			err := p.leaveWord(ctx)
			if err == nil {
				last = time.Now()
				break
			}
			p.board.log.Debug("no word left in the index; trying again", "err", err)
			if !sleep(ctx, jitter(wordAgain)) {
				return
			}
		}
	}
}

func (p *Publisher) leaveWord(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, wordMax)
	defer cancel()
	return p.board.index.LeaveWord(ctx)
}
