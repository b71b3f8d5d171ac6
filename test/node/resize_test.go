package node_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/test/nodekit"
	"github.com/waggle-net/waggle/test/nodekit/load"
)

// Flows that begin while maps of flows and of translations are resized continue afterwards, in both families: between pods, from a pod and from a client
// outside to a service, and from a pod to the outside under the node's address. The policies allow no packet without a flow. No packet of a flow is lost.
func TestPrivilegedService_MapResizeKeepsFlows(t *testing.T) {
	t.Parallel()
	m := newStoppedServiceFixture(t, "--bpf-lb-sock=false")
	m.write(t, "shop.yaml", shopManifests+fmt.Sprintf(shopPolicies, "{ipBlock: {cidr: 192.0.2.1/32}}, {ipBlock: {cidr: \"2001:db8:2::1/128\"}}"))
	m.start(t)
	friend, deniedPod := m.pod(t, "friend"), m.pod(t, "stranger")
	serveName(t, m.OutsideHost(), "outside", 8080)
	m.service(t, "web", webRest+fmt.Sprintf(nodePorts, "NodePort", "Cluster"))
	m.backends(t, "one")
	var starts []start
	for i, f := range families {
		for _, network := range networks {
			m.ready(t, netip.AddrPortFrom(uplinks[i], webNodePort), 1)
			for from, to := range map[nodekit.NetNS][]netip.AddrPort{
				friend:          {netip.AddrPortFrom(webAddrs[i], 80), netip.AddrPortFrom(m.pods["one"].Addr(f.ipv6), 8080)},
				deniedPod:       {netip.AddrPortFrom(outsideAddr(f.ipv6), 8080)},
				m.OutsideHost(): {netip.AddrPortFrom(uplinks[i], webNodePort)},
			} {
				for _, to := range to {
					starts = append(starts, start{from, network, to})
				}
			}
		}
	}
	for _, s := range starts {
		eventually(t, func() error { _, err := requestBriefly(t.Context(), s.from, s.network, s.to); return err }) // the policies are enforced
	}
	for _, size := range []struct{ flows, translations uint32 }{{262144, 1048576}, {131072, 524288}, {65536, 262144}, {131072, 524288}} {
		m.AddAgentArgs(fmt.Sprintf("--bpf-ct-global-tcp-max=%d", size.flows), fmt.Sprintf("--bpf-nat-global-max=%d", size.translations))
		turn := load.TakeTurn(t)
		opening := startFlows(starts)
		err := m.UpgradeAgent(t.Context(), "")
		if err == nil {
			entries := map[string]uint32{bpf.MapCtEst4: size.flows, bpf.MapCtEst6: size.flows, bpf.MapNat4: size.translations, bpf.MapNat6: size.translations / 2}
			eventually(t, func() error {
				pins, err := mapPins(m.Node)
				for name, want := range entries {
					if err == nil && (pins[bpf.PinName(name, 1)] != want || pins[bpf.PinName(name+"_next", 1)] != 0) {
						err = fmt.Errorf("want one map %s of %d entries: %v", name, want, pins)
					}
				}
				return err
			})
			eventually(t, func() error { return hooksHave(t, m.Node, entries) })
		}
		if err != nil {
			t.Error(err)
		}
		opening.end()
		if err := turn.Release(); err != nil {
			t.Error(err)
		}
		all := opening.all
		t.Logf("%d flows began while the maps were resized", len(all))
		for _, err := range opening.failed {
			t.Error(err)
		}
		if len(all) < 3*len(starts) {
			t.Errorf("only %d flows began", len(all))
		}
		if opening.again > 0 {
			t.Errorf("%d flows sent something again", opening.again)
		}
		for _, l := range all {
			if got := l.request(t); got != l.server {
				t.Errorf("%s over %s is answered by %q, at first by %q", l.to, l.network, got, l.server)
			}
			_ = l.Close()
		}
	}
}

// hooksHave returns an error if a program on a hook of the node uses a map of flows with another size than these.
func hooksHave(t *testing.T, node *nodekit.Node, entries map[string]uint32) error {
	text, err := node.Waggle(t.Context(), "db", "show", "attachments")
	if err != nil {
		return err
	}
	found := map[string]bool{}
	for line := range strings.Lines(text) {
		f := strings.Fields(line) // Kind, Device, Hook, Program, Generation, ProgramID, Endpoint, Status
		if len(f) != 8 || f[0] != "block" && f[0] != "tcx" {
			continue
		}
		id, err := strconv.ParseUint(f[5], 10, 32)
		if err != nil || f[7] != "Done" {
			return fmt.Errorf("a hook is not replaced: %s: %w", line, err)
		}
		maps, err := mapsOf(ebpf.ProgramID(id))
		if err != nil {
			return err
		}
		for name, size := range maps {
			if want, is := entries[name]; is && size != want {
				return fmt.Errorf("the program of %s has a map %s of %d entries, want %d", line, name, size, want)
			}
			found[name] = true
		}
	}
	for name := range entries {
		if !found[name] {
			return fmt.Errorf("no program on a hook has the map %s:\n%s", name, text)
		}
	}
	return nil
}

// mapsOf returns the sizes of the maps of a program, by name.
func mapsOf(id ebpf.ProgramID) (map[string]uint32, error) {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return nil, err
	}
	ids, _ := info.MapIDs()
	sizes := make(map[string]uint32, len(ids))
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return nil, err
		}
		info, err := m.Info()
		if err = errors.Join(err, m.Close()); err != nil {
			return nil, err
		}
		if have, found := sizes[info.Name]; found && have != info.MaxEntries {
			return nil, fmt.Errorf("program %d has two maps %s, of %d and %d entries", id, info.Name, have, info.MaxEntries)
		}
		sizes[info.Name] = info.MaxEntries
	}
	return sizes, nil
}

// start describes the start of a flow.
type start struct {
	from    nodekit.NetNS
	network string
	to      netip.AddrPort
}

// opening begins one flow after the other until it is ended.
type opening struct {
	stop    chan struct{}
	stopped chan struct{}

	mu     sync.Mutex // guards the fields below
	all    []*line
	again  int     // flows with retransmissions
	failed []error // of flows without a reply
}

// startFlows begins flows in turn, one every 2 ms. Each stays open after its first reply.
func startFlows(starts []start) *opening {
	o := &opening{stop: make(chan struct{}), stopped: make(chan struct{})}
	go func() {
		defer close(o.stopped)
		var running sync.WaitGroup
		defer running.Wait()
		for tick := time.Tick(2 * time.Millisecond); ; {
			for _, s := range starts {
				select {
				case <-o.stop:
					return
				case <-tick:
				}
				running.Go(func() { o.begin(s) })
			}
		}
	}()
	return o
}

func (o *opening) begin(s start) {
	l, again, err := s.begin()
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil {
		o.failed = append(o.failed, fmt.Errorf("begin a flow to %s over %s: %w", s.to, s.network, err))
		return
	}
	o.all = append(o.all, l)
	if again {
		o.again++
	}
}

// begin opens a flow, waits for its first reply, and reports whether a datagram was lost and sent again before the reply.
func (s start) begin() (l *line, again bool, err error) {
	l = &line{network: s.network, to: s.to}
	if err := s.from.Do(func() (err error) {
		l.Conn, err = net.DialTimeout(s.network, s.to.String(), answerTimeout)
		return err
	}); err != nil {
		return nil, false, err
	}
	a, err := requestOn(l.Conn)
	if s.network == "udp" && errors.Is(err, os.ErrDeadlineExceeded) { // a lost datagram is detected at any timeout
		again = true
		a, err = requestOn(l.Conn)
	}
	if err != nil {
		return nil, again, errors.Join(err, l.Close())
	}
	l.server = a.server
	return l, again, nil
}

// repeated reports whether a connection retransmitted segments that its peer had not received: the peer reports duplicates (DSACK).
func repeated(conn *net.TCPConn) (again bool, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if failed = err; err == nil {
			again = info.Total_retrans > info.Dsack_dups
		}
	})
	return again, errors.Join(err, failed)
}

// end stops the start of flows, and counts the connections with retransmissions. It counts at the end because a peer may report a duplicate after its reply.
func (o *opening) end() {
	close(o.stop)
	<-o.stopped
	for _, l := range o.all {
		if tcp, is := l.Conn.(*net.TCPConn); is {
			again, err := repeated(tcp)
			if err != nil {
				o.failed = append(o.failed, err)
			}
			if again {
				o.again++
			}
		}
	}
}
