package node_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waggle-net/waggle/test/nodekit/load"
)

// talk has parties talk all the time, in both families: long connections, short ones and numbered datagrams, from one to another.
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

// undisturbed ends the traffic and wants that nothing of it was lost.
func undisturbed(t *testing.T, l *load.Load) {
	t.Helper()
	r, err := l.Stop()
	if err != nil {
		t.Fatal(err)
	}
	t.Log(r)
	if err := r.Err(); err != nil {
		t.Errorf("traffic was disturbed that policies allow all the time:\n%v", err)
	}
}

// span is from one moment of a load to another.
type span struct{ begin, end time.Duration }

// instant is how far apart datagrams may have been sent that are lost while the kernel takes over several pods with one call. That
// takes microseconds, unless the call has to wait for a CPU.
const instant = 20 * time.Millisecond

// hardlyDisturbed ends the traffic and wants that no connection was hurt, and that what was lost in each of the spans was sent within
// an instant. What TCP sent again is not asked for: nobody knows when that was.
func hardlyDisturbed(t *testing.T, l *load.Load, spans []span) {
	t.Helper()
	r, err := l.Stop()
	if err != nil {
		t.Fatal(err)
	}
	t.Log(r)
	lost := map[span]span{} // when that was sent which was lost in a span
	for _, loss := range r.UDP.Losses {
		i := slices.IndexFunc(spans, func(s span) bool { return s.begin <= loss.First && loss.Last <= s.end })
		if i < 0 {
			t.Errorf("%s: %d datagrams are lost that were sent from %v to %v, when nothing changed", loss.Path, loss.Count, loss.First, loss.Last)
			continue
		}
		all, more := lost[spans[i]]
		if !more {
			all = span{loss.First, loss.Last}
		}
		lost[spans[i]] = span{min(all.begin, loss.First), max(all.end, loss.Last)}
	}
	for in, all := range lost {
		if took := all.end - all.begin; took > instant {
			t.Errorf("from %v to %v, for longer than %v, datagrams were lost", all.begin, all.end, instant)
		} else {
			t.Logf("what was sent from %v to %v was lost, in the restart at %v", all.begin, all.end, in.begin)
		}
	}
	r.UDP.Lost, r.TCP.LostSegments = 0, 0
	if err := r.Err(); err != nil {
		t.Errorf("connections were disturbed that policies allow all the time:\n%v", err)
	}
}

// knocking is somebody who begins connections that policies deny, again and again.
type knocking struct {
	from, to *party
	heard    *tap
	tries    atomic.Int64
	stop     context.CancelFunc
	group    errgroup.Group
}

// knock has one party flood another until the end.
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

// unheard ends the tries and wants that none came through.
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
