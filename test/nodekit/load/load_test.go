package load

import (
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/testnet"
	"github.com/waggle-net/waggle/test/nodekit"
)

func pair(t *testing.T) *nodekit.BarePair {
	t.Helper()
	testnet.RequirePrivileges(t)
	bare, err := nodekit.NewBarePair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bare.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, ipv6 := range []bool{false, true} { // its links and addresses come up one after the other
		for tries := 1; ; tries++ {
			if err := nodekit.PingBriefly(bare.Client(), bare.Addr(ipv6), 56); err == nil {
				break
			} else if tries == 5 {
				t.Fatal(err)
			}
		}
	}
	return bare
}

func paths(bare *nodekit.BarePair) []Path {
	return []Path{{Name: "IPv4", From: bare.Client(), To: bare.Server(), Addr: bare.Addr(false)},
		{Name: "IPv6", From: bare.Client(), To: bare.Server(), Addr: bare.Addr(true)}}
}

// run runs a load on paths during f.
func run(t *testing.T, over []Path, f func()) Report {
	t.Helper()
	l := StartFor(t, Rates{Connections: 20, Messages: 100, Datagrams: 1000, Connects: 20}, over, nil)
	f()
	r, err := l.Stop()
	if err != nil {
		t.Fatal(err)
	}
	t.Log(r)
	return r
}

func TestPrivilegedLoad_DirectLink_NoLoss(t *testing.T) {
	t.Parallel()
	r := run(t, paths(pair(t)), func() { time.Sleep(time.Second) })
	if err := r.Err(); err != nil {
		t.Error(err)
	}
}

// Half a second without received frames must appear in all parts of the report.
func TestPrivilegedLoad_ReportsLoss(t *testing.T) {
	t.Parallel()
	bare := pair(t)
	rememberServer(t, bare)
	readdress := func(change byte) { // the sender keeps using the known address
		if err := bare.Server().Do(func() error {
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			address := slices.Clone(link.Attrs().HardwareAddr)
			address[5] ^= change
			return netlink.LinkSetHardwareAddr(link, address)
		}); err != nil {
			t.Fatal(err)
		}
	}
	r := run(t, paths(bare), func() {
		time.Sleep(300 * time.Millisecond)
		readdress(1)
		again, datagrams := counter(t, bare.Client(), "Tcp", "RetransSegs"), counter(t, bare.Client(), "Udp", "OutDatagrams")
		time.Sleep(500 * time.Millisecond)
		for deadline := time.Now().Add(replyTimeout); ; time.Sleep(tick) { // the senders may have had no CPU
			lost := counter(t, bare.Client(), "Udp", "OutDatagrams") - datagrams
			if counter(t, bare.Client(), "Tcp", "RetransSegs") > again && lost >= 10 || time.Now().After(deadline) {
				break
			}
		}
		readdress(1)
		time.Sleep(300 * time.Millisecond)
	})
	if r.UDP.Lost == 0 || r.TCP.LostSegments == 0 || r.TCP.Retransmitted == 0 || r.UDP.LongestGap < 300*time.Millisecond {
		t.Error("the cut is not seen")
	}
	if err := r.Err(); err == nil || !strings.Contains(err.Error(), "did not arrive, sent at") {
		t.Errorf("the error does not say what was lost: %v", err)
	}
}

// counter returns a counter of a protocol in a network namespace (/proc/net/snmp).
func counter(t *testing.T, at nodekit.NetNS, protocol, name string) int {
	t.Helper()
	var text []byte
	if err := at.Do(func() (err error) { text, err = os.ReadFile("/proc/thread-self/net/snmp"); return err }); err != nil {
		t.Fatal(err)
	}
	var names []string // in the line that precedes the values
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if fields[0] != protocol+":" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		n, err := strconv.Atoi(fields[slices.Index(names, name)])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	t.Fatalf("there are no counters of %s", protocol)
	return 0
}

// rememberServer adds a permanent neighbour entry for the server to the client.
func rememberServer(t *testing.T, bare *nodekit.BarePair) {
	t.Helper()
	var address net.HardwareAddr
	if err := bare.Server().Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err == nil {
			address = link.Attrs().HardwareAddr
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := bare.Client().Do(func() error {
		link, err := netlink.LinkByName("eth0")
		for _, ipv6 := range []bool{false, true} {
			if err == nil {
				err = netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT,
					IP: bare.Addr(ipv6).AsSlice(), HardwareAddr: address})
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// Datagrams that exceed a full receive buffer do not count as lost.
func TestPrivilegedStream_FullBufferIsNotLoss(t *testing.T) {
	t.Parallel()
	bare := pair(t)
	l := &Load{begin: time.Now(), stop: make(chan struct{})}
	l.faults.load = l
	s, err := newStream(paths(bare)[0], 0, &l.faults)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.close() })
	raw, err := s.server.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		if err := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 1<<14); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	// Bursts are faster than a reader of such a buffer, and no longer than the kernel's queue before it.
	received := counter(t, bare.Server(), "Ip", "InReceives")
	for deadline := time.Now().Add(replyTimeout); counter(t, bare.Server(), "Udp", "RcvbufErrors") == 0 && time.Now().Before(deadline); {
		for range 500 {
			s.send()
		}
		for received += 500; counter(t, bare.Server(), "Ip", "InReceives") < received && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
	}
	var u UDP
	s.finish(&u)
	t.Logf("%+v", u)
	if u.Overflowed == 0 || u.Lost > 0 {
		t.Errorf("%d overflowed, %d were lost", u.Overflowed, u.Lost)
	}
}

// every distinguishes slots that were missed because the goroutine woke too late from slots that the network delayed.
func TestEvery_CountsMissedSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const period = 100 * time.Millisecond
		l := &Load{begin: time.Now().Add(-10*period - period/2), stop: make(chan struct{})}
		calls := 0
		overslept := l.every(period, 0, func() bool {
			if calls++; calls == 3 {
				time.Sleep(7 * period) // a slow answer
			}
			return calls < 10
		})
		if overslept != 10 {
			t.Errorf("%d slots were overslept, want the 10 before the first call", overslept)
		}
		if took := time.Since(l.begin); took != 25*period { // 10 overslept, 9 after the first call, and 6 during the slow answer
			t.Errorf("it took %v", took)
		}
	})
}

func TestReceiver_CountsReorderedPackets(t *testing.T) {
	t.Parallel()
	var r receiver
	begin := time.Now()
	for i, number := range []uint64{0, 1, 3, 2, 2, 5} { // sent every millisecond, received every two
		r.take(number, begin.Add(time.Duration(number)*time.Millisecond), begin.Add(time.Duration(2*i)*time.Millisecond))
	}
	if r.reordered != 1 || r.duplicated != 1 || r.gap != 2*time.Millisecond {
		t.Errorf("got %+v", r)
	}
	s := &stream{sentAt: make([]time.Time, 7), seen: r, faults: &faults{load: &Load{}}, path: Path{Name: "x"}}
	if missing := count(s.missing()); missing != 2 { // 4 and 6
		t.Errorf("%d are missing, want 2", missing)
	}
}

// A run that sent less than half of the required traffic is inconclusive, regardless of its results.
func TestReport_TooLittleTraffic_IsInconclusive(t *testing.T) {
	t.Parallel()
	rates := Rates{Connections: 1, Messages: 100, Datagrams: 1000, Connects: 20, Lies: 10}
	enough := Report{Rates: rates, Duration: 2 * time.Second, TCP: TCP{Messages: 100}, UDP: UDP{Sent: 1000}, Connects: Connects{Done: 20}, Denied: Denied{Sent: 10}}
	if err := enough.Err(); err != nil {
		t.Errorf("half of all: %v", err)
	}
	for what, less := range map[string]func(*Report){
		"sent 99 of 200 TCP messages in 2.0 s": func(r *Report) { r.TCP.Messages-- },
		"sent 999 of 2000 datagrams":           func(r *Report) { r.UDP.Sent-- },
		"sent 19 of 40 connections":            func(r *Report) { r.Connects.Done-- },
		"sent 9 of 20 forbidden frames":        func(r *Report) { r.Denied.Sent-- },
	} {
		r := enough
		less(&r)
		if err := r.Err(); err == nil || !strings.Contains(err.Error(), "inconclusive: "+what) {
			t.Errorf("want %q: %v", what, err)
		}
	}
}

// An answer that differs by one byte counts as wrong.
func TestExchange_ComparesTheEcho(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	defer near.Close()
	go func() {
		buffer := make([]byte, maxMessage)
		n, _ := far.Read(buffer)
		buffer[n-1]++
		_, _ = far.Write(buffer[:n])
		_ = far.Close()
	}()
	if err := exchange(near, newRandom(1, 1)); err != errCorrupted {
		t.Errorf("got %v", err)
	}
}
