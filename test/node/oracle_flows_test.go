package node_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/waggle-net/waggle/test/nodekit"
)

// oraclePort is the port on which pods receive allowed packets. Denied packets are sent to another port, see [begin].
const oraclePort = 7000

const (
	oracleTick    = 5 * time.Millisecond
	oracleSlots   = 10                     // ticks between two datagrams of a flow
	oracleDebt    = 200 * time.Millisecond // datagrams that are late by more are skipped
	betweenWords  = 200 * time.Millisecond // messages of a long connection
	betweenDials  = time.Second            // short connections
	oracleBuffer  = 16 << 20               // bytes; holds all datagrams of some minutes, so that none is lost for lack of a CPU
	oracleMessage = 1200                   // bytes at most, which fits into a tunnel
	// wordTimeout is longer than TCP's retransmission interval after a node was disconnected for half a minute.
	wordTimeout = 90 * time.Second
)

// oracleFlow is the traffic of a pod to another one in one family: numbered datagrams, one long connection, and short ones. While it is owed, all datagrams
// must arrive. While it is not owed, datagrams may be lost, but no established connection may end.
type oracleFlow struct {
	traffic  *oracleTraffic
	id       uint64
	name     string
	from, to *nodekit.Pod
	addr     netip.AddrPort // of to
	streams  bool           // has connections
	client   *net.UDPConn
	cancel   context.CancelFunc
	running  sync.WaitGroup

	mu      sync.Mutex
	owed    bool
	turns   int                      // number of changes of owed
	since   time.Duration            // last change of owed, in time with traffic
	owedFor time.Duration            // duration before that, in time with traffic
	due     int                      // datagrams that were sent while the flow was owed
	next    uint64                   // next datagram
	last    uint64                   // datagram that arrived last, one more than its number
	missing map[uint64]time.Duration // datagrams that were sent while the flow was owed, with their times
	words   int                      // messages with a reply
}

// talk begins a flow, which is not owed yet.
func (tr *oracleTraffic) talk(from, to *nodekit.Pod, ipv6, streams bool) (*oracleFlow, error) {
	f := &oracleFlow{traffic: tr, name: from.Name + " to " + to.Name, from: from, to: to, addr: netip.AddrPortFrom(to.Addr(ipv6), oraclePort), streams: streams, missing: map[uint64]time.Duration{}}
	if err := from.Do(func() (err error) {
		f.client, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(f.addr))
		return err
	}); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel = cancel
	tr.mu.Lock()
	tr.made++
	f.id = tr.made
	f.name += fmt.Sprintf(" (%s)", f.addr.Addr())
	tr.flows[f.id] = f
	tr.mu.Unlock()
	if streams {
		random := rand.New(rand.NewPCG(f.id, 0)) // of bytes, whose echo is compared
		f.running.Go(func() { f.converse(ctx, random) })
		f.running.Go(func() { f.dialOften(ctx) })
	}
	return f, nil
}

func (f *oracleFlow) send() {
	f.mu.Lock()
	defer f.mu.Unlock()
	buffer := make([]byte, 16+int(f.next)*31%(oracleMessage-16))
	binary.BigEndian.PutUint64(buffer, f.id)
	binary.BigEndian.PutUint64(buffer[8:], f.next)
	if f.owed {
		f.due++
		f.missing[f.next] = f.traffic.at()
		f.traffic.count(&f.traffic.sent)
	}
	if _, err := f.client.Write(buffer); err != nil && f.owed && !errors.Is(err, net.ErrClosed) {
		f.traffic.fault("%s: datagram %d is refused: %v", f.name, f.next, err)
	}
	f.next++
}

func (f *oracleFlow) arrived(number uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.missing, number)
	f.last = max(f.last, number+1)
}

// held returns the current turn of the flow if it is owed; otherwise -1.
func (f *oracleFlow) held() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.owed {
		return -1
	}
	return f.turns
}

// change sets whether a flow is owed. The caller must hold mu.
func (f *oracleFlow) change(owed bool) {
	now := f.traffic.flowedFor()
	if f.owed {
		f.owedFor += now - f.since
	}
	f.owed, f.since = owed, now
	f.turns++
}

// enough returns an error when less than half of the datagrams that had to arrive were sent, because a datagram that was not sent cannot be lost.
func (f *oracleFlow) enough() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	owedFor := f.owedFor
	if f.owed {
		owedFor += f.traffic.flowedFor() - f.since
	}
	if want := int(owedFor / (oracleSlots * oracleTick)); f.due < want/2 {
		return fmt.Errorf("inconclusive: %s: sent %d of %d datagrams that had to arrive, in %v", f.name, f.due, want, owedFor.Round(time.Millisecond))
	}
	return nil
}

// converse keeps a long connection open and sends messages over it, which are echoed. An established connection must not end.
func (f *oracleFlow) converse(ctx context.Context, random *rand.Rand) {
	var conn net.Conn
	defer func() {
		if conn != nil {
			_ = conn.Close()
		}
	}()
	for f.traffic.await(ctx); ctx.Err() == nil; f.traffic.await(ctx) {
		if conn == nil {
			if conn = f.dial(ctx); conn == nil {
				pauseFor(ctx, betweenWords)
				continue
			}
			defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
		}
		if err := echoRandom(conn, random); err != nil {
			if ctx.Err() == nil {
				f.traffic.fault("%s: the connection from %s has ended after %d messages: %v", f.name, conn.LocalAddr(), f.words, err)
			}
			return
		}
		f.traffic.count(&f.traffic.words)
		f.mu.Lock()
		f.words++
		f.mu.Unlock()
		pauseFor(ctx, betweenWords)
	}
}

// dialOften begins short connections, one after the other.
func (f *oracleFlow) dialOften(ctx context.Context) {
	random := rand.New(rand.NewPCG(f.id, 1))
	for pauseFor(ctx, betweenDials); ctx.Err() == nil; pauseFor(ctx, betweenDials) {
		f.traffic.await(ctx)
		conn := f.dial(ctx)
		if conn == nil {
			continue
		}
		turn := f.held()
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		err := echoRandom(conn, random)
		stop()
		if err != nil && ctx.Err() == nil && turn >= 0 && turn == f.held() {
			f.traffic.fault("%s: a short connection from %s: %v", f.name, conn.LocalAddr(), err)
		}
		_ = conn.Close()
		f.traffic.count(&f.traffic.connects)
	}
}

// dial returns a connection, or nil on failure, which is a fault while the flow is owed.
func (f *oracleFlow) dial(ctx context.Context) (conn net.Conn) {
	turn := f.held()
	err := f.from.Do(func() (err error) {
		conn, err = (&net.Dialer{Timeout: answerTimeout}).DialContext(ctx, "tcp", f.addr.String())
		return err
	})
	if err != nil {
		if ctx.Err() == nil && turn >= 0 && turn == f.held() {
			f.traffic.fault("%s: connect: %v", f.name, err)
		}
		return nil
	}
	return conn
}

// echoRandom sends random bytes and requires their echo.
func echoRandom(conn net.Conn, random *rand.Rand) error {
	sent := make([]byte, 1+random.IntN(2*oracleMessage))
	for i := range sent {
		sent[i] = byte(random.Uint32())
	}
	if err := conn.SetDeadline(time.Now().Add(wordTimeout)); err != nil {
		return err
	}
	if _, err := conn.Write(sent); err != nil {
		return err
	}
	received := make([]byte, len(sent))
	if _, err := io.ReadFull(conn, received); err != nil {
		return err
	}
	if !bytes.Equal(sent, received) {
		return errors.New("the echo differs from what was sent")
	}
	return nil
}

// pauseFor sleeps for d or until the context ends.
func pauseFor(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// lost returns the datagrams below a number that had to arrive and have not.
func (f *oracleFlow) lost(below uint64) (numbers []uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for number := range f.missing {
		if number < below {
			numbers = append(numbers, number)
		}
	}
	slices.Sort(numbers)
	return numbers
}

// end ends a flow. No datagram of it may be in flight.
func (f *oracleFlow) end() {
	f.traffic.mu.Lock()
	delete(f.traffic.flows, f.id)
	f.traffic.mu.Unlock()
	if err := f.enough(); err != nil {
		f.traffic.fault("%v", err)
	}
	f.cancel()
	f.running.Wait()
	_ = f.client.Close()
}

// beginning returns the beginning of the first packet from an address.
func (tp *tap) beginning(addr netip.Addr) []byte {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	return tp.first[addr]
}

// forget deletes the records of packets from addresses, so that later ones count as new.
func (tp *tap) forget(addrs ...netip.Addr) {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	for _, addr := range addrs {
		delete(tp.count, addr)
		delete(tp.first, addr)
	}
}
