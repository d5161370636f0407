package blob

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/wire"
)

// The conversation, one blob or folder per stream:
//
//	client: hello                    server: welcome, or an error
//	receiver: have{offset}           sender: data frames up to the blob's size
//	of a folder, receiver: need      sender: data frames of the chunks needed, one after the other
//	receiver: done
//
// The sender is the client in a push and the server in a fetch. Everything that the receiver says may be an error in its place.

// hello opens the conversation.
type hello struct {
	Lease wire.Hash `cbor:"1,keyasint"`
	Hash  wire.Hash `cbor:"2,keyasint"`
	Push  bool      `cbor:"3,keyasint"`
	Tree  bool      `cbor:"4,keyasint"`
	Size  int64     `cbor:"5,keyasint,omitempty"` // of a push
	Total int64     `cbor:"6,keyasint,omitempty"` // of a push
}

// welcome is the server's yes.
type welcome struct {
	Size int64 `cbor:"1,keyasint,omitempty"` // of a fetch: the blob's or the manifest's
}

// have is where the receiver goes on.
type have struct {
	Offset int64 `cbor:"1,keyasint"`
}

// need is the chunks that the receiver lacks, as bits: bit i%8 of byte i/8 is chunk i, counted through the manifest without repeats.
type need struct {
	Bits []byte `cbor:"1,keyasint"`
}

// done says that all is checked and stored.
type done struct{}

// Times. Both ends give up on a silent peer and resume over another stream.
const (
	frameTime = 30 * time.Second // for one data frame: 256 KiB at 70 kbit/s
	thinkTime = 5 * time.Minute  // for the peer to hash what it has (64 GiB at 300 MB/s), or to sync what it got
)

// conv is one side of a conversation.
type conv struct {
	s        p2p.Stream
	progress Progress
	base     int64 // bytes that the peer has already
	total    int64
	stopped  atomic.Bool // the peer answered: nothing more needs to be sent
	buf      []byte      // of one data frame with its length
}

func newConv(s p2p.Stream, progress Progress) *conv {
	return &conv{s: s, progress: progress, buf: make([]byte, 4+maxData)}
}

// moved counts n bytes.
func (c *conv) moved(n int64) {
	c.base += n
	if c.progress != nil {
		c.progress(c.base, c.total)
	}
}

// hear reads the peer's answer.
func (c *conv) hear(v any) error {
	if err := c.s.SetDeadline(time.Now().Add(thinkTime)); err != nil {
		return err
	}
	return fromPeer(p2p.Receive(c.s, v, maxControl))
}

// say answers the peer: v, or err in its place.
func (c *conv) say(v any, err error) error {
	if e := c.s.SetDeadline(time.Now().Add(frameTime)); e != nil {
		return errors.Join(err, e)
	}
	return p2p.Respond(c.s, v, toPeer(err), maxControl)
}

// sendFrom sends r from offset to its end.
func (c *conv) sendFrom(r Reader, offset int64) error {
	for size := r.Size(); offset < size; {
		n := min(maxData, size-offset)
		if _, err := io.ReadFull(io.NewSectionReader(r, offset, n), c.buf[4:4+n]); err != nil {
			return sourceError{fmt.Errorf("read blob: %w: %w", ErrChanged, err)}
		}
		binary.BigEndian.PutUint32(c.buf, uint32(n))
		if err := c.s.SetDeadline(time.Now().Add(frameTime)); err != nil {
			return err
		}
		if c.stopped.Load() { // after the deadline was set: whoever stops us sets one in the past afterwards
			return errors.New("the peer broke off")
		}
		if _, err := c.s.Write(c.buf[:4+n]); err != nil {
			return err
		}
		offset += n
		c.moved(n)
	}
	return nil
}

// recvInto reads one data frame into dst and gives its length.
func (c *conv) recvInto(dst []byte) (int, error) {
	if err := c.s.SetDeadline(time.Now().Add(frameTime)); err != nil {
		return 0, err
	}
	if _, err := io.ReadFull(c.s, c.buf[:4]); err != nil {
		return 0, brokenOff(err)
	}
	n := binary.BigEndian.Uint32(c.buf)
	if n == 0 || n > maxData || int64(n) > int64(len(dst)) {
		return 0, fmt.Errorf("%w: a data frame of %d bytes where %d are left", wire.ErrFormat, n, len(dst))
	}
	if _, err := io.ReadFull(c.s, dst[:n]); err != nil {
		return 0, brokenOff(err)
	}
	c.moved(int64(n))
	return int(n), nil
}

// brokenOff gives an end in the middle its name.
func brokenOff(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return fromPeer(err)
}

// sourceError is our own failure to read what we were about to send.
type sourceError struct{ error }

func (e sourceError) Unwrap() error { return e.error }

// exchange sends while it waits for the answer, so that a refusal in the middle is heard at once.
func (c *conv) exchange(send func() error, answer any) error {
	heard := make(chan error, 1)
	c.stopped.Store(false)
	go func() {
		err := c.hear(answer)
		if err != nil {
			c.stopped.Store(true)
			c.s.SetDeadline(time.Unix(1, 0)) // a blocked write ends; a failing call means that the stream has ended already
		}
		heard <- err
	}()
	sendErr := send()
	if own := (sourceError{}); errors.As(sendErr, &own) {
		c.s.Reset(p2p.KindOf(toPeer(own.error))) // the peer learns the kind; the answer that we wait for ends with the stream
		<-heard
		return own.error
	}
	if sendErr == nil {
		c.s.SetDeadline(time.Now().Add(thinkTime)) // what the peer does after our last byte may take its time
		if c.stopped.Load() {
			c.s.SetDeadline(time.Unix(1, 0))
		}
	}
	err := <-heard
	if err != nil && sendErr != nil && !isPeers(err) {
		return errors.Join(sendErr, err)
	}
	return err
}

func isPeers(err error) bool {
	var e *p2p.Error
	return errors.As(err, &e)
}

// outgoing is what a sender sends: a blob, and with a folder its chunks.
type outgoing struct {
	src    Source
	root   Reader
	tree   bool
	chunks []chunk
	total  int64 // bytes of the blob and all distinct chunks
	claim  int64 // bytes of the blob and all files
}

// openOutgoing opens blob h and, of a folder, reads its manifest.
func openOutgoing(ctx context.Context, src Source, h wire.Hash, tree bool) (*outgoing, error) {
	r, err := src.Blob(ctx, h)
	if err != nil {
		return nil, err
	}
	o := &outgoing{src: src, root: r, tree: tree, total: r.Size(), claim: r.Size()}
	if !tree {
		return o, nil
	}
	m, err := readManifest(r)
	if err == nil {
		o.chunks, err = m.chunks()
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	o.claim += m.Bytes()
	for _, c := range o.chunks {
		o.total += c.size
	}
	return o, nil
}

func readManifest(r Reader) (Manifest, error) {
	if r.Size() > MaxManifest {
		return Manifest{}, fmt.Errorf("manifest of %d bytes: %w (limit %d)", r.Size(), ErrPath, MaxManifest)
	}
	b := make([]byte, r.Size())
	if _, err := io.ReadFull(io.NewSectionReader(r, 0, r.Size()), b); err != nil {
		return Manifest{}, fmt.Errorf("read manifest: %w", err)
	}
	return DecodeManifest(b)
}

// send is the sender's side.
func (c *conv) send(ctx context.Context, o *outgoing) error {
	c.total = o.total
	var h have
	if err := c.hear(&h); err != nil {
		return err
	}
	if h.Offset < 0 || h.Offset > o.root.Size() {
		return fmt.Errorf("%w: offset %d of %d bytes", wire.ErrFormat, h.Offset, o.root.Size())
	}
	c.moved(h.Offset)
	rest := func() error { return c.sendFrom(o.root, h.Offset) }
	if !o.tree {
		return c.exchange(rest, &done{})
	}
	var n need
	if err := c.exchange(rest, &n); err != nil {
		return err
	}
	wanted, err := n.pick(o.chunks)
	if err != nil {
		return err
	}
	c.moved(o.total - o.root.Size() - sizeOf(wanted))
	return c.exchange(func() error { return c.sendChunks(ctx, o.src, wanted) }, &done{})
}

func (c *conv) sendChunks(ctx context.Context, src Source, list []chunk) error {
	for _, k := range list {
		r, err := src.Blob(ctx, k.hash)
		if err != nil {
			return sourceError{err}
		}
		if r.Size() != k.size {
			err = sourceError{fmt.Errorf("chunk %s of %d bytes, want %d: %w", k.hash.Short(), r.Size(), k.size, ErrChanged)}
		} else {
			err = c.sendFrom(r, 0)
		}
		if err = errors.Join(err, r.Close()); err != nil {
			return err
		}
	}
	return nil
}

func sizeOf(list []chunk) (n int64) {
	for _, k := range list {
		n += k.size
	}
	return n
}

// pick gives the chunks whose bits are set.
func (n need) pick(list []chunk) ([]chunk, error) {
	if len(n.Bits) != (len(list)+7)/8 {
		return nil, fmt.Errorf("%w: %d bytes of bits for %d chunks", wire.ErrFormat, len(n.Bits), len(list))
	}
	var wanted []chunk
	for i, k := range list {
		if n.Bits[i/8]&(1<<(i%8)) != 0 {
			wanted = append(wanted, k)
		}
	}
	return wanted, nil
}

// incoming is what a receiver was promised.
type incoming struct {
	hash  wire.Hash
	size  int64
	tree  bool
	claim int64 // of a pushed folder; -1: unknown
}

// receive is the receiver's side. Its own failures are told to the peer before they come back.
func (c *conv) receive(ctx context.Context, dst *Store, in incoming) error {
	c.total = max(in.size, in.claim)
	if err := c.receiveBlob(dst, in); err != nil {
		return err
	}
	if in.tree {
		if err := c.receiveTree(ctx, dst, in); err != nil {
			return err
		}
	}
	return c.say(done{}, nil)
}

func (c *conv) receiveBlob(dst *Store, in incoming) error {
	if in.tree && in.size > MaxManifest {
		return c.say(nil, fmt.Errorf("manifest of %d bytes: %w (limit %d)", in.size, ErrPath, MaxManifest))
	}
	if size, ok := dst.Has(in.hash); ok {
		if size != in.size {
			return c.say(nil, fmt.Errorf("blob %s has %d bytes here: %w", in.hash.Short(), size, ErrHashMismatch))
		}
		c.moved(size)
		return c.say(have{Offset: size}, nil)
	}
	w, err := dst.Writer(in.hash, in.size)
	if err != nil {
		return c.say(nil, err)
	}
	defer w.Close() // after a break what came stays for the next time
	c.moved(w.Offset())
	if err := c.say(have{Offset: w.Offset()}, nil); err != nil {
		return err
	}
	buf := make([]byte, maxData)
	for w.Offset() < in.size {
		n, err := c.recvInto(buf[:min(maxData, in.size-w.Offset())])
		if err != nil {
			return c.giveUp(err)
		}
		if _, err := w.Write(buf[:n]); err != nil {
			return c.say(nil, err)
		}
	}
	if err := w.Commit(); err != nil {
		return c.say(nil, err)
	}
	return nil
}

// giveUp tells the peer about a frame that it should not have sent; a broken line just comes back.
func (c *conv) giveUp(err error) error {
	if errors.Is(err, wire.ErrFormat) {
		return c.say(nil, err)
	}
	return err
}

func (c *conv) receiveTree(ctx context.Context, dst *Store, in incoming) error {
	list, err := c.plan(ctx, dst, in)
	if err != nil {
		return c.say(nil, err)
	}
	bits := make([]byte, (len(list)+7)/8)
	var lacking []chunk
	for i, k := range list {
		if size, ok := dst.Has(k.hash); ok && size == k.size {
			continue
		}
		bits[i/8] |= 1 << (i % 8)
		lacking = append(lacking, k)
	}
	if err := dst.room(sizeOf(lacking)); err != nil {
		return c.say(nil, err)
	}
	c.total = in.size + sizeOf(list)
	c.moved(sizeOf(list) - sizeOf(lacking))
	if err := c.say(need{Bits: bits}, nil); err != nil {
		return err
	}
	buf := make([]byte, ChunkSize)
	for _, k := range lacking {
		for at := int64(0); at < k.size; {
			n, err := c.recvInto(buf[at:k.size])
			if err != nil {
				return c.giveUp(err)
			}
			at += int64(n)
		}
		if wire.Sum("", buf[:k.size]) != k.hash {
			return c.say(nil, fmt.Errorf("chunk %s: %w", k.hash.Short(), ErrHashMismatch))
		}
		if err := dst.put(k.hash, buf[:k.size]); err != nil {
			return c.say(nil, err)
		}
	}
	return nil
}

// plan reads the manifest that just came.
func (c *conv) plan(ctx context.Context, dst *Store, in incoming) ([]chunk, error) {
	r, err := dst.Blob(ctx, in.hash)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	m, err := readManifest(r)
	if err != nil {
		return nil, err
	}
	if in.claim >= 0 && in.size+m.Bytes() != in.claim {
		return nil, fmt.Errorf("a folder of %d bytes was announced as %d: %w", in.size+m.Bytes(), in.claim, ErrPath)
	}
	return m.chunks()
}
