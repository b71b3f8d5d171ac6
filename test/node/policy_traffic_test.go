package node_test

import (
	"context"
	"sync/atomic"
	"testing"

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
	l, err := load.Start(load.Rates{Connections: 2 * len(paths), Messages: 100, Datagrams: 1200, Connects: 40}, paths, nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
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
