package ctgc

import (
	"slices"
	"time"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/tables/backends"
)

// collectAffinities deletes affinities that programs no longer use: the timeout since the client's last new connection is over, or the service has no affinity,
// or the backend no longer belongs to the service.
func (p *pass) collectAffinities() error {
	begin := time.Now()
	now, err := p.kernel.Now()
	if err != nil {
		return err
	}
	all, capacity, err := p.nat.Affinities()
	if err != nil {
		return err
	}
	if err := p.refresh(); err != nil {
		return err
	}
	sum := found{capacity: capacity}
	for _, a := range all {
		lost, expired := p.affinity(a, now)
		if !lost && !expired {
			sum.entries++
			continue
		}
		gone, err := p.nat.DeleteAffinity(a.Key, func(e bpf.AffinityEntry) bool { return e == a.Entry })
		switch {
		case err != nil:
			return err
		case !gone:
			sum.entries++ // a program has renewed it
		case lost:
			sum.unserved++
		default:
			sum.expired++
		}
	}
	sum.took = time.Since(begin)
	p.found[bpf.MapAffinity] = sum
	return nil
}

func (p *pass) affinity(a affinity, now uint32) (lost, expired bool) {
	if p.services == nil {
		return false, false
	}
	f, found := p.services.frontend(a.Key.Service)
	if !found || f.Affinity == 0 {
		return true, false
	}
	b, _, found := p.services.tables.Backends.Get(p.services.txn, backends.ByID(a.Entry.Backend))
	if !found || !slices.Contains(b.Services, f.Service) {
		return true, false
	}
	timeout := bpf.CtTicks(time.Duration(f.Affinity) * time.Second)
	return false, int32(now-a.Entry.Used) > int32(timeout)
}
