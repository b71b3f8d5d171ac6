package load

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	receiveBuffer = 16 << 20 // bytes; several seconds of a stream, for a receiver without a CPU
	tick          = 5 * time.Millisecond
	header        = 24 // bytes: number of the datagram, number of the stream, sending time
	endMark       = ^uint64(0)
	settle        = 5 * time.Second // timeout for datagrams in flight; it elapses only after a loss
)

// stream is a sequence of numbered datagrams on one path.
type stream struct {
	path           Path
	id             uint64
	faults         *faults
	server, client *net.UDPConn
	buffer         []byte
	sentAt         []time.Time // of each datagram; owned by the sender until it is done
	failed         int
	arrived        atomic.Int64
	seen           receiver      // owned by the receiver until it is done
	done           chan struct{} // closed when the receiver is done
}

// receiver holds the state of the receiving end.
type receiver struct {
	have                  []bool // by number
	next                  uint64 // the highest number plus one
	reordered, duplicated int
	overflowed            uint32
	lastSent, lastArrival time.Time
	gap                   time.Duration
}

func newStream(path Path, id int, f *faults) (*stream, error) {
	s := &stream{path: path, id: uint64(id), faults: f, buffer: make([]byte, 1200), done: make(chan struct{})}
	if err := path.To.Do(func() (err error) {
		s.server, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(path.Addr, path.Port)))
		return err
	}); err != nil {
		return nil, err
	}
	if err := errors.Join(prepare(s.server), path.From.Do(func() error {
		conn, err := net.Dial("udp", path.target(s.server.LocalAddr()))
		if err == nil {
			s.client = conn.(*net.UDPConn)
		}
		return err
	})); err != nil {
		return nil, errors.Join(err, s.server.Close())
	}
	go s.receive()
	// The first datagram resolves neighbours and fills route caches, during which the kernel may delay others.
	s.send()
	for deadline := time.Now().Add(replyTimeout); s.arrived.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return nil, errors.Join(fmt.Errorf("the first datagram did not arrive"), s.close())
		}
	}
	return s, nil
}

// prepare enables arrival times and the count of datagrams that exceed the buffer, and sets a large buffer.
func prepare(conn *net.UDPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer),
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1))
	})
	return errors.Join(err, failed)
}

// sendDatagrams sends a few datagrams on each tick, to the streams in turn, and all from one CPU: the kernel does not preserve the order between two CPUs.
func (l *Load) sendDatagrams(rate int) {
	runtime.LockOSThread() // permanently: the thread ends with this goroutine
	if err := errors.Join(stayOnOneCPU(), goAhead()); err != nil {
		l.faults.add("all", "stay on one CPU and before other threads: %v", err)
	}
	next, each := 0, rate*int(tick)/int(time.Second)
	l.missedDatagrams = each * l.everyBy(l.sleepThread, tick, 0, func() bool {
		for range each {
			l.streams[next%len(l.streams)].send()
			l.sent.datagrams.Add(1)
			next++
		}
		return true
	})
}

// goAhead gives the calling thread, which must be locked to its goroutine, a higher priority than ordinary threads of the machine: real traffic comes from
// other machines and does not wait for the CPU of a busy node. Threads that this thread creates are ordinary.
func goAhead() error {
	err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: 1, Flags: unix.SCHED_FLAG_RESET_ON_FORK}, 0)
	if errors.Is(err, unix.EPERM) { // a cgroup without real-time quota
		err = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -20)
	}
	return err
}

func stayOnOneCPU() error {
	var may, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return err
	}
	for cpu := 0; one.Count() == 0; cpu++ {
		if may.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	return unix.SchedSetaffinity(0, &one)
}

func (s *stream) send() {
	number, now := uint64(len(s.sentAt)), time.Now()
	s.sentAt = append(s.sentAt, now)
	if err := s.write(number, now); err != nil {
		s.failed++
		s.faults.add(s.path.Name, "datagram %d: %v", number, err)
	}
}

// write sends a datagram of 24 to 1199 bytes.
func (s *stream) write(number uint64, now time.Time) error {
	binary.BigEndian.PutUint64(s.buffer, number)
	binary.BigEndian.PutUint64(s.buffer[8:], s.id)
	binary.BigEndian.PutUint64(s.buffer[16:], uint64(now.UnixNano()))
	_, err := s.client.Write(s.buffer[:header+int(number%7919)*31%(len(s.buffer)-header)])
	return err
}

func (s *stream) receive() {
	defer close(s.done)
	buffer, oob := make([]byte, 2048), make([]byte, 256)
	for {
		n, oobn, _, _, err := s.server.ReadMsgUDP(buffer, oob)
		if errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		if err != nil {
			s.faults.add(s.path.Name, "receive: %v", err)
			continue
		}
		if n < header || binary.BigEndian.Uint64(buffer[8:]) != s.id {
			s.faults.add(s.path.Name, "a datagram of %d bytes is of no stream here", n)
			continue
		}
		arrival := s.seen.control(oob[:oobn])
		number, sent := binary.BigEndian.Uint64(buffer), time.Unix(0, int64(binary.BigEndian.Uint64(buffer[16:])))
		if number == endMark {
			return
		}
		s.seen.take(number, sent, arrival)
		s.arrived.Add(1)
	}
}

// control parses the kernel's control messages of a datagram: its arrival time, and the number of preceding datagrams that exceeded the buffer.
func (r *receiver) control(oob []byte) (arrival time.Time) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return time.Now()
	}
	for _, m := range messages {
		switch {
		case m.Header.Level != unix.SOL_SOCKET:
		case m.Header.Type == unix.SO_TIMESTAMPNS && len(m.Data) >= 16:
			arrival = time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])))
		case m.Header.Type == unix.SO_RXQ_OVFL && len(m.Data) >= 4:
			r.overflowed = binary.NativeEndian.Uint32(m.Data)
		}
	}
	return arrival
}

// take records one datagram. A pause of its sender is no gap, unless other datagrams were sent meanwhile and are missing.
func (r *receiver) take(number uint64, sent, arrival time.Time) {
	for uint64(len(r.have)) <= number {
		r.have = append(r.have, false)
	}
	gap := arrival.Sub(r.lastArrival)
	switch {
	case r.have[number]:
		r.duplicated++
	case number < r.next:
		r.reordered++
	case number == 0:
		r.next = 1
	case number == r.next:
		gap -= sent.Sub(r.lastSent)
		fallthrough
	default:
		r.next, r.gap = number+1, max(r.gap, gap)
	}
	r.lastSent, r.lastArrival = sent, arrival
	r.have[number] = true
}

// finish waits for datagrams in flight, then for the end mark, which finds an empty buffer and so carries the final count of datagrams that exceeded the
// buffer, and adds the results to u.
func (s *stream) finish(u *UDP) {
	sent := len(s.sentAt)
	for deadline := time.Now().Add(settle); int(s.arrived.Load()) < sent && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond)
	}
	if err := s.write(endMark, time.Now()); err != nil {
		s.faults.add(s.path.Name, "end mark: %v", err)
	}
	select {
	case <-s.done:
	case <-time.After(replyTimeout):
		s.faults.add(s.path.Name, "the end mark did not arrive")
		_ = s.server.SetReadDeadline(time.Now())
		<-s.done
	}
	overflowed := int(s.seen.overflowed)
	u.Sent += sent
	missing := s.missing()
	u.Losses = append(u.Losses, missing...)
	u.Lost += max(0, count(missing)-overflowed)
	u.Refused += s.failed
	u.Overflowed += overflowed
	u.Reordered += s.seen.reordered
	u.Duplicated += s.seen.duplicated
	u.LongestGap = max(u.LongestGap, s.seen.gap)
}

// missing returns the datagrams that did not arrive, with consecutive ones combined.
func (s *stream) missing() (losses []Loss) {
	for first := 0; first < len(s.sentAt); first++ {
		last := first
		for last < len(s.sentAt) && (last >= len(s.seen.have) || !s.seen.have[last]) {
			last++
		}
		if last == first {
			continue
		}
		loss := Loss{s.path.Name, last - first, s.sentAt[first].Sub(s.faults.load.begin), s.sentAt[last-1].Sub(s.faults.load.begin)}
		s.faults.add(s.path.Name, "datagrams %d to %d did not arrive, sent at %v to %v", first, last-1, loss.First, loss.Last)
		losses = append(losses, loss)
		first = last
	}
	return losses
}

func count(losses []Loss) (n int) {
	for _, l := range losses {
		n += l.Count
	}
	return n
}

func (s *stream) close() error {
	var errs []error
	for _, conn := range []*net.UDPConn{s.client, s.server} {
		if err := conn.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	<-s.done
	return errors.Join(errs...)
}
