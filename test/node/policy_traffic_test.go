package node_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waggle-net/waggle/test/nodekit/load"
)

// talk starts traffic from one party to another in both families: long connections, short ones and numbered datagrams.
func (w *world) talk(t *testing.T, ways ...[2]string) *load.Load {
	t.Helper()
	var paths []load.Path
	for _, way := range ways {
		for i, family := range families {
			from, to := w.party(way[0]), w.party(way[1])
			paths = append(paths, load.Path{Name: way[0] + " to " + way[1] + " " + family.name, From: from, To: to, Addr: to.addrs[i]})
		}
	}
	return load.StartFor(t, load.Rates{Connections: 2 * len(paths), Messages: 100, Datagrams: 1200, Connects: 40}, paths, nil)
}

// undisturbed ends the traffic and requires that none of it was lost.
func undisturbed(t *testing.T, l *load.Load) {
	t.Helper()
	if err := ended(t, l).Err(); err != nil {
		t.Errorf("traffic was disturbed that policies allow all the time:\n%v", err)
	}
}

// span is the time from one moment of a load to another.
type span struct{ begin, end time.Duration }

// hardlyDisturbed ends the traffic and requires that no connection was disturbed, and that datagrams were lost only in one of the spans, while the kernel
// switched to the pods' new state. One system call does that for all pods. A datagram is lost if it meets one pod before and another pod after its own turn in
// that call, which has these consequences:
//
//   - On each path, the datagrams lost in a span are consecutive. If a pod were switched in several steps, some would pass between.
//   - Most spans lose none: the call takes microseconds, and a few datagrams are sent every 5 ms. Only a call that is interrupted loses some. If pods were
//     switched one after the other, milliseconds apart, almost every span would lose some.
//
// The length of a sequence of lost datagrams is no criterion: the process may lose its CPU between two slots of the call. Exact tests in cells/policy/policymaps
// (TestTransition) and cells/endpoint/endpointmaps (policies-of-all-endpoints) cover that there is one call, and no moment without an entry before or after it. TCP
// retransmissions are no criterion either: no counter has their times.
func hardlyDisturbed(t *testing.T, l *load.Load, spans []span) {
	t.Helper()
	r := ended(t, l)
	for _, wrong := range notAtOnce(r.UDP.Losses, spans) {
		t.Error(wrong)
	}
	r.UDP.Lost, r.TCP.LostSegments = 0, 0
	if err := r.Err(); err != nil {
		t.Errorf("connections were disturbed that policies allow all the time:\n%v", err)
	}
}

// notAtOnce lists properties of the datagram losses that contradict one call in each span.
func notAtOnce(losses []load.Loss, spans []span) (wrong []error) {
	rows := map[span]map[string]int{} // sequences of lost datagrams, by span and path
	for _, loss := range losses {
		i := slices.IndexFunc(spans, func(s span) bool { return s.begin <= loss.First && loss.Last <= s.end })
		if i < 0 {
			wrong = append(wrong, fmt.Errorf("%s: %d datagrams are lost that were sent from %v to %v, when nothing changed", loss.Path, loss.Count, loss.First, loss.Last))
			continue
		}
		if rows[spans[i]] == nil {
			rows[spans[i]] = map[string]int{}
		}
		if rows[spans[i]][loss.Path]++; rows[spans[i]][loss.Path] == 2 {
			wrong = append(wrong, fmt.Errorf("%s: in the restart at %v datagrams are lost, others pass, and again some are lost: the change took effect in steps", loss.Path, spans[i].begin))
		}
	}
	if 2*len(rows) > len(spans) {
		wrong = append(wrong, fmt.Errorf("%d of %d restarts lost datagrams: pods are not taken over by one call", len(rows), len(spans)))
	}
	return wrong
}

func TestNotAtOnce(t *testing.T) {
	t.Parallel()
	spans := []span{{10, 20}, {30, 40}, {50, 60}}
	for name, c := range map[string]struct {
		losses []load.Loss
		wrong  int
	}{
		"nothing":              {nil, 0},
		"a row on each path":   {[]load.Loss{{Path: "a", First: 12, Last: 14}, {Path: "b", First: 13, Last: 19}}, 0},
		"in steps":             {[]load.Loss{{Path: "a", First: 12, Last: 14}, {Path: "a", First: 16, Last: 19}}, 1},
		"when nothing changes": {[]load.Loss{{Path: "a", First: 22, Last: 23}}, 1},
		"beyond the end":       {[]load.Loss{{Path: "a", First: 18, Last: 23}}, 1},
		"in most restarts":     {[]load.Loss{{Path: "a", First: 12, Last: 14}, {Path: "a", First: 32, Last: 34}}, 1},
	} {
		if got := notAtOnce(c.losses, spans); len(got) != c.wrong {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// knocking is a party that begins connections which policies deny, repeatedly.
type knocking struct {
	from, to *party
	heard    *tap
	tries    atomic.Int64
	stop     context.CancelFunc
	group    errgroup.Group
}

// knock floods one party from another until unheard is called.
func (w *world) knock(t *testing.T, from, to string) *knocking {
	t.Helper()
	k := &knocking{from: w.party(from), to: w.party(to), heard: listenAll(t, w.party(to))}
	addrs := &targets{}
	addrs.add(k.to.addrs[:]...)
	ctx, cancel := context.WithCancel(t.Context())
	k.stop = cancel
	k.group.Go(func() error { return flood(ctx, k.from, addrs, &k.tries) })
	return k
}

// unheard ends the tries and requires that no packet arrived.
func (k *knocking) unheard(t *testing.T) {
	t.Helper()
	k.stop()
	if err := k.group.Wait(); err != nil {
		t.Error(err)
	}
	if n := k.heard.from(k.from.addrs[:]...); n > 0 || k.tries.Load() == 0 {
		t.Errorf("%d of %d packets from %s reached %s", n, k.tries.Load(), k.from.name, k.to.name)
	}
}
