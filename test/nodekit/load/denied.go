package load

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/nodekit"
)

// Probe sends frames that must not be received. A permitted frame before the first and after the last one shows that the receiver works.
type Probe struct {
	Name   string
	From   nodekit.NetNS
	Device string // of From
	Honest []byte // a frame with a UDP datagram to Addr
	Lies   [][]byte
	To     nodekit.NetNS
	Addr   netip.AddrPort // destination of the counted datagrams
}

type probe struct {
	Probe
	raw     int // packet socket that receives no frames
	conn    *net.UDPConn
	sent    int
	arrived atomic.Int64
	done    chan struct{}
}

func newProbe(of Probe) (*probe, error) {
	p := &probe{Probe: of, raw: -1, done: make(chan struct{})}
	if err := p.To.Do(func() (err error) {
		p.conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(p.Addr))
		return err
	}); err != nil {
		return nil, err
	}
	go p.receive()
	if err := p.From.Do(p.open); err != nil {
		return nil, errors.Join(err, p.close())
	}
	if err := p.beHonest(1); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// open opens the sending socket.
func (p *probe) open() (err error) {
	p.raw, err = sendSocket(p.Device)
	return err
}

func (p *probe) send(frame []byte) error {
	if _, err := unix.Write(p.raw, frame); err != nil {
		return fmt.Errorf("send a frame of %d bytes from %s: %w", len(frame), p.Device, err)
	}
	return nil
}

func (p *probe) receive() {
	defer close(p.done)
	buffer := make([]byte, 2048)
	for {
		if _, err := p.conn.Read(buffer); err != nil {
			return
		}
		p.arrived.Add(1)
	}
}

// beHonest sends the permitted frame and waits until want datagrams have arrived.
func (p *probe) beHonest(want int64) error {
	if err := p.send(p.Honest); err != nil {
		return err
	}
	for deadline := time.Now().Add(replyTimeout); p.arrived.Load() < want; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("an honest frame did not arrive at %s", p.Addr)
		}
	}
	return nil
}

// lie sends the forbidden frames of all probes in turn.
func (l *Load) lie(rate int) {
	if len(l.probes) == 0 {
		return
	}
	runtime.LockOSThread() // permanently
	if err := goAhead(); err != nil {
		l.faults.add("lies", "%v", err)
	}
	next := 0
	l.missedLies = l.everyBy(l.sleepThread, time.Second/time.Duration(rate), 0, func() bool {
		p := l.probes[next%len(l.probes)]
		frame := p.Lies[next/len(l.probes)%len(p.Lies)]
		next++
		before := p.arrived.Load()
		if err := p.send(frame); err != nil {
			l.faults.add(p.Name, "%v", err)
			return true
		}
		p.sent++
		l.sent.lies.Add(1)
		if p.arrived.Load() > before {
			l.faults.add(p.Name, "a forbidden frame arrived: %x", frame)
		}
		return true
	})
}

func (p *probe) finish(d *Denied) error {
	lies := p.arrived.Load() - 1 // without the first permitted frame
	err := p.beHonest(lies + 2)
	d.Sent += p.sent
	d.Arrived += int(p.arrived.Load() - 2)
	return err
}

func (p *probe) close() error {
	err := p.conn.Close()
	<-p.done
	if p.raw >= 0 {
		_ = unix.Close(p.raw)
		p.raw = -1
	}
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
