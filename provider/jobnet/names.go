package jobnet

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/gpufair/gpufair/provider/reach"
)

const (
	maxQuery = 1232 // bytes of a question or answer over UDP (DNS Flag Day 2020)
	// nameTTL is how long a job may keep an answer: this machine's resolvers do not say.
	nameTTL   = 30
	answerIn  = 10 * time.Second
	quietIn   = 30 * time.Second // how long a client may keep a connection without a question
	maxAnswer = 32               // addresses
)

// answerPackets answers the questions of one UDP flow, each beside the others. Those that come while too many are asked are lost.
func (n *router) answerPackets(c net.Conn) {
	defer c.Close()
	b := make([]byte, maxQuery)
	for {
		_ = c.SetReadDeadline(time.Now().Add(quietIn)) // it does not fail
		k, err := c.Read(b)
		if err != nil {
			return
		}
		query := append([]byte(nil), b[:k]...)
		select {
		case n.lookups <- struct{}{}:
			go func() {
				defer func() { <-n.lookups }()
				if answer := n.answer(query); answer != nil {
					_, _ = c.Write(answer) // if it is lost the job asks again
				}
			}()
		default:
		}
	}
}

// answerStream answers the questions of one connection, one after the other (RFC 1035, 4.2.2).
func (n *router) answerStream(c net.Conn) {
	for {
		_ = c.SetReadDeadline(time.Now().Add(quietIn)) // it does not fail
		var size [2]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		query := make([]byte, min(binary.BigEndian.Uint16(size[:]), maxQuery))
		if _, err := io.ReadFull(c, query); err != nil {
			return
		}
		n.lookups <- struct{}{}
		answer := n.answer(query)
		<-n.lookups
		if answer == nil {
			return
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil {
			return
		}
	}
}

// answer answers one question; nil if it is none, or if the byte cap is reached: names carry bytes as well as connections do. Addresses that
// the job may not reach are left out: whether a name of the owner's own network exists is not to be learned here.
func (n *router) answer(query []byte) []byte {
	if n.spend(&n.count.out, len(query)) != nil {
		return nil
	}
	var p dnsmessage.Parser
	h, err := p.Start(query)
	if err != nil || h.Response {
		return nil
	}
	q, err := p.Question()
	if err != nil {
		return nil
	}
	var ips []netip.Addr
	code := dnsmessage.RCodeNotImplemented
	if h.OpCode == 0 && q.Class == dnsmessage.ClassINET {
		ips, code = n.look(q)
	}
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: h.ID, Response: true, RecursionDesired: h.RecursionDesired, RecursionAvailable: true, RCode: code})
	b.EnableCompression()
	err = errors.Join(b.StartQuestions(), b.Question(q), b.StartAnswers())
	for _, ip := range ips[:min(len(ips), maxAnswer)] {
		rh := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: nameTTL}
		if q.Type == dnsmessage.TypeA {
			err = errors.Join(err, b.AResource(rh, dnsmessage.AResource{A: ip.As4()}))
		} else {
			err = errors.Join(err, b.AAAAResource(rh, dnsmessage.AAAAResource{AAAA: ip.As16()}))
		}
	}
	if err != nil {
		return nil
	}
	answer, err := b.Finish()
	if err != nil || n.spend(&n.count.in, len(answer)) != nil {
		return nil
	}
	return answer
}

// look finds a name's addresses. Names of other kinds than addresses have none; a name without any is told from one that is not there by
// nobody, since this machine's resolvers do not tell either.
func (n *router) look(q dnsmessage.Question) ([]netip.Addr, dnsmessage.RCode) {
	network := map[dnsmessage.Type]string{dnsmessage.TypeA: "ip4", dnsmessage.TypeAAAA: "ip6"}[q.Type]
	if network == "" {
		return nil, dnsmessage.RCodeSuccess
	}
	name := strings.ToLower(q.Name.String())
	if name == "localhost." || strings.HasSuffix(name, ".localhost.") { // the job's own (RFC 6761, 6.3)
		return map[string][]netip.Addr{"ip4": {netip.AddrFrom4([4]byte{127, 0, 0, 1})}, "ip6": {netip.IPv6Loopback()}}[network], dnsmessage.RCodeSuccess
	}
	ctx, cancel := context.WithTimeout(n.ctx, answerIn)
	defer cancel()
	ips, err := n.names.Allowed(ctx, network, name, 0) // with its dot: no search list of the owner's is tried
	var refused *reach.Refused
	var missing *net.DNSError
	switch {
	case err == nil, errors.As(err, &refused), errors.As(err, &missing) && missing.IsNotFound:
		return ips, dnsmessage.RCodeSuccess
	}
	return nil, dnsmessage.RCodeServerFailure
}
