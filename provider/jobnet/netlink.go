package jobnet

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// link speaks rtnetlink(7) about one interface of the current thread's namespace.
type link struct {
	fd    int
	index int32
}

func openLink(name string) (*link, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("rtnetlink: %w", err)
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		var sock int
		if sock, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err == nil {
			err = unix.IoctlIfreq(sock, unix.SIOCGIFINDEX, req)
			unix.Close(sock)
		}
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("index of %s: %w", name, err)
	}
	return &link{fd: fd, index: int32(req.Uint32())}, nil
}

func (l *link) close() { unix.Close(l.fd) }

// up turns the interface on with an MTU.
func (l *link) up(mtu uint32) error {
	body := make([]byte, 4, unix.SizeofIfInfomsg)
	body = binary.NativeEndian.AppendUint32(body, uint32(l.index))
	body = binary.NativeEndian.AppendUint32(body, unix.IFF_UP)
	body = binary.NativeEndian.AppendUint32(body, unix.IFF_UP) // the flags that change
	body = append(body, attribute(unix.IFLA_MTU, binary.NativeEndian.AppendUint32(nil, mtu))...)
	return l.ask(unix.RTM_NEWLINK, 0, body)
}

// address gives the interface an address with its prefix.
func (l *link) address(p netip.Prefix) error {
	body := []byte{family(p.Addr()), byte(p.Bits()), unix.IFA_F_NODAD, unix.RT_SCOPE_UNIVERSE} // nobody else is on the link: no duplicates
	body = binary.NativeEndian.AppendUint32(body, uint32(l.index))
	body = append(body, attribute(unix.IFA_LOCAL, p.Addr().AsSlice())...)
	body = append(body, attribute(unix.IFA_ADDRESS, p.Addr().AsSlice())...)
	return l.ask(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, body)
}

// route sends all else of an address's family to it, by this interface.
func (l *link) route(gateway netip.Addr) error {
	body := []byte{family(gateway), 0, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_STATIC, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST, 0, 0, 0, 0}
	body = append(body, attribute(unix.RTA_GATEWAY, gateway.AsSlice())...)
	body = append(body, attribute(unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, uint32(l.index)))...)
	return l.ask(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, body)
}

func family(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// ask sends one request and reads the kernel's answer.
func (l *link) ask(kind, flags uint16, body []byte) error {
	msg := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	msg = binary.NativeEndian.AppendUint16(msg, kind)
	msg = binary.NativeEndian.AppendUint16(msg, unix.NLM_F_REQUEST|unix.NLM_F_ACK|flags)
	msg = append(append(msg, make([]byte, 8)...), body...) // sequence and port: one request at a time
	if err := unix.Sendto(l.fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("rtnetlink: %w", err)
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(l.fd, answer, 0)
	if err != nil || n < unix.SizeofNlMsghdr+4 {
		return fmt.Errorf("rtnetlink: an answer of %d bytes: %w", n, err)
	}
	if code := int32(binary.NativeEndian.Uint32(answer[unix.SizeofNlMsghdr:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

// attribute is a type, a length and a value, padded (netlink(7)).
func attribute(kind uint16, data []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(data)))
	b = append(binary.NativeEndian.AppendUint16(b, kind), data...)
	return append(b, make([]byte, (4-len(data)%4)%4)...)
}
