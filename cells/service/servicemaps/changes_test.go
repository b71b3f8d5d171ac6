package servicemaps

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// sharing are services whose slices have the same endpoints: those of one slice are 10.1.0.0, 10.1.0.1 and so on. A service has one or more slices.
type sharing struct {
	*whole
	services, endpoints int
}

// newSharing starts the cells with services that are in force. slots is the size of the map service_slots; 0 for the default.
func newSharing(b *testing.B, services, slices, endpoints int, slots uint32) *sharing {
	s := &sharing{newWhole(b, map[string]uint32{bpf.MapServiceSlots: slots}), services, endpoints}
	txn := s.DB.WriteTxn(s.Services)
	for i := range services {
		_, _, err := s.Services.Insert(txn, &k8s.Service{Namespace: "d", Name: fmt.Sprint("s", i), Type: "ClusterIP", ClusterIPs: []netip.Addr{s.addr(96, i)},
			Ports: []k8s.ServicePort{{Protocol: "TCP", Port: 80}}})
		if err != nil {
			b.Fatal(err)
		}
	}
	txn.Commit()
	for slice := range slices {
		s.put(slice, true)
	}
	s.start()
	s.wait(services)
	s.awaitInForce(services)
	return s
}

func (s *sharing) addr(block byte, i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, block, byte(i >> 8), byte(i)})
}

// put inserts one slice of each service in one transaction. first reports whether its first endpoint exists.
func (s *sharing) put(slice int, first bool) {
	txn := s.DB.WriteTxn(s.Slices)
	defer txn.Commit()
	for service := range s.services {
		row := &k8s.EndpointSlice{Namespace: "d", Name: fmt.Sprint("s", service, "-", slice), Service: fmt.Sprint("s", service), AddressType: "IPv4",
			Ports: []k8s.SlicePort{{Protocol: "TCP", Port: 8080}}}
		for i := range s.endpoints {
			if i > 0 || first {
				row.Endpoints = append(row.Endpoints, k8s.SliceEndpoint{Addrs: []netip.Addr{s.addr(1, slice*s.endpoints+i)}, Ready: true, Serving: true, NodeName: "two",
					Pod: fmt.Sprint("d/pod-", slice, "-", i)})
			}
		}
		if _, _, err := s.Slices.Insert(txn, row); err != nil {
			s.Fatal(err)
		}
	}
}

// change measures the time from a change of the rows until the entries of all services are in the maps.
func (s *sharing) change(slice int, first bool) time.Duration {
	began := time.Now()
	s.put(slice, first)
	s.wait(s.services)
	took := time.Since(began)
	s.awaitInForce(s.services)
	return took
}

// percentiles reports the median and the 99th percentile of the durations of changes.
func percentiles(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "ns/change-p50")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "ns/change-p99")
}

// manySlots is a size of the map service_slots with which no change waits for slots, or overwrites some, because the previous slots are free only after a second.
const manySlots = 1 << 21

// BenchmarkPrivilegedSharedBackends measures how long it takes until one of ten pods behind 2,000 services is removed from the maps, or back.
func BenchmarkPrivilegedSharedBackends(b *testing.B) {
	for b.Loop() {
		s := newSharing(b, 2000, 1, 10, manySlots)
		var took []time.Duration
		for i := range 20 {
			took = append(took, s.change(0, i%2 == 1))
		}
		percentiles(b, took)
		s.stop()
	}
}

// BenchmarkPrivilegedLargeService measures how long it takes until one of the 10,000 endpoints of a service is removed from the maps, or back: single changes, and
// changes that follow each other, of which the map of the default size takes eight in a second.
func BenchmarkPrivilegedLargeService(b *testing.B) {
	const slices = 100 // with 100 endpoints each, as the control plane of Kubernetes creates slices
	for _, c := range []struct {
		name    string
		slots   uint32
		changes int
	}{{"single", manySlots, 2 * slices}, {"one_after_another", 0, slices / 2}} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				s := newSharing(b, 1, slices, 100, c.slots)
				var took []time.Duration
				for i := range c.changes {
					took = append(took, s.change(i/2, i%2 == 1))
				}
				percentiles(b, took)
				s.stop()
			}
		})
	}
}
