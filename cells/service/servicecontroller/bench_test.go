package servicecontroller

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// sharing is a cluster whose services all have the same backends, like the services of Knative that are scaled to zero: each slice names the pods of the
// activator.
type sharing struct {
	*bench
	services, backends int
}

func newSharing(t testing.TB, services, backends int) *sharing {
	s := &sharing{newBench(t, DefaultConfig, &fakeIDs{}), services, backends}
	s.state(sources.Synced)
	for i := range services {
		s.insert(&k8s.Service{Namespace: "d", Name: fmt.Sprint("s", i), Type: "ClusterIP", ClusterIPs: []netip.Addr{numberedAddr(96, i)},
			Ports: []k8s.ServicePort{{Protocol: "TCP", Port: 80}}})
	}
	s.setReady(true)
	s.step()
	return s
}

// slice returns the slice of a service. first reports whether its first backend is ready.
func (s *sharing) slice(service int, first bool) *k8s.EndpointSlice {
	slice := &k8s.EndpointSlice{Namespace: "d", Name: fmt.Sprint("s", service, "-x"), Service: fmt.Sprint("s", service), AddressType: "IPv4",
		Ports: []k8s.SlicePort{{Protocol: "TCP", Port: 8012}}}
	for i := range s.backends {
		ready := i > 0 || first
		slice.Endpoints = append(slice.Endpoints, k8s.SliceEndpoint{Addrs: []netip.Addr{numberedAddr(1, i)}, Ready: ready, Serving: ready, NodeName: "two",
			Pod: fmt.Sprint("knative/activator-", i)})
	}
	return slice
}

// setReady changes in one transaction whether the first backend is ready in all slices.
func (s *sharing) setReady(first bool) {
	rows := make([]any, s.services)
	for i := range rows {
		rows[i] = s.slice(i, first)
	}
	s.insert(rows...)
}

// leave removes the first backend from all slices in one transaction.
func (s *sharing) leave() {
	rows := make([]any, s.services)
	for i := range rows {
		slice := s.slice(i, true)
		slice.Endpoints = slice.Endpoints[1:]
		rows[i] = slice
	}
	s.insert(rows...)
}

func numberedAddr(block byte, i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, block, byte(i >> 8), byte(i)})
}

// crowd is a service of many endpoints, 100 of them in each slice.
type crowd struct {
	*bench
	slices int
}

func newCrowd(t testing.TB, slices int) *crowd {
	c := &crowd{newBench(t, DefaultConfig, &fakeIDs{}), slices}
	c.state(sources.Synced)
	c.insert(&k8s.Service{Namespace: "d", Name: "crowd", Type: "ClusterIP", ClusterIPs: []netip.Addr{numberedAddr(96, 1)},
		Ports: []k8s.ServicePort{{Protocol: "TCP", Port: 80}}})
	for i := range slices {
		c.insert(c.slice(i, true))
	}
	c.step()
	return c
}

const inSlice = 100 // endpoints of a slice, as the control plane of Kubernetes creates slices

func (c *crowd) slice(number int, first bool) *k8s.EndpointSlice {
	slice := &k8s.EndpointSlice{Namespace: "d", Name: fmt.Sprint("crowd-", number), Service: "crowd", AddressType: "IPv4",
		Ports: []k8s.SlicePort{{Protocol: "TCP", Port: 8080}}}
	for i := range inSlice {
		slice.Endpoints = append(slice.Endpoints, k8s.SliceEndpoint{Addrs: []netip.Addr{numberedAddr(1, inSlice*number+i)}, Ready: i > 0 || first, Serving: true,
			NodeName: "two", Pod: fmt.Sprint("d/crowd-", number, "-", i)})
	}
	return slice
}

// percentiles reports the median and the 99th percentile of the durations of passes.
func percentiles(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2]), "ns/pass-p50")
	b.ReportMetric(float64(took[len(took)*99/100]), "ns/pass-p99")
}

// BenchmarkSharedBackends measures the pass after one of ten pods behind 2,000 services is removed, and the pass after its readiness has changed.
func BenchmarkSharedBackends(b *testing.B) {
	s := newSharing(b, 2000, 10)
	b.Run("removed", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			s.setReady(true)
			s.step()
			s.leave()
			b.StartTimer()
			s.step()
		}
	})
	b.Run("not_ready", func(b *testing.B) {
		ready := true
		for b.Loop() {
			b.StopTimer()
			ready = !ready
			s.setReady(ready)
			b.StartTimer()
			s.step()
		}
	})
}

// BenchmarkSliceEvent measures the pass after a change of one slice, among the slices of 2,000 services with ten shared backends.
func BenchmarkSliceEvent(b *testing.B) {
	s := newSharing(b, 2000, 10)
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		s.insert(s.slice(i*7%s.services, i/s.services%2 == 1))
		began := time.Now()
		b.StartTimer()
		s.step()
		took = append(took, time.Since(began))
	}
	percentiles(b, took)
}

// BenchmarkLargeService measures the pass after a change of one of the 10,000 endpoints of a service.
func BenchmarkLargeService(b *testing.B) {
	c := newCrowd(b, 100)
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		c.insert(c.slice(i%c.slices, i/c.slices%2 == 1))
		began := time.Now()
		b.StartTimer()
		c.step()
		took = append(took, time.Since(began))
	}
	percentiles(b, took)
}

// BenchmarkServicesOfTheNode measures the pass after the node has gained or lost an address, at which all NodePort services have frontends.
func BenchmarkServicesOfTheNode(b *testing.B) {
	const many = 10_000
	x := newBench(b, DefaultConfig, &fakeIDs{})
	x.c.Rules.agent.NodePortMax = 50_000
	x.fill(0, 0)
	rows := make([]any, many)
	for i := range rows {
		rows[i] = &k8s.Service{Namespace: "d", Name: fmt.Sprint("s", i), Type: typeNodePort, ClusterIPs: []netip.Addr{numberedAddr(96, i)},
			Ports: []k8s.ServicePort{{Protocol: "TCP", Port: 80, NodePort: uint16(30_000 + i)}}}
	}
	x.insert(rows...)
	x.step()
	longest := time.Duration(0)
	x.commits.took = func(d time.Duration) { longest = max(longest, d) }
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		address := nodeaddresses.Address{Addr: netip.MustParseAddr("192.0.2.2"), NodePort: true, Device: "eth0"}
		if i%2 == 0 {
			x.insert(address)
		} else {
			x.remove(address)
		}
		b.StartTimer()
		x.step()
	}
	b.ReportMetric(float64(longest), "ns/commit-max")
}
