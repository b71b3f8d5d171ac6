package ipamallocator

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/waggle-net/waggle/pkg/ipam"
)

// BenchmarkMemory measures the memory of an allocated address: row, indexes and bitmap. The result must not depend on the size of the range or grow with the
// number of addresses.
func BenchmarkMemory(b *testing.B) {
	for _, prefix := range []string{"10.0.0.0/16", "10.0.0.0/8", "fd00::/112", "fd00::/64", "fd00::/48"} {
		for _, count := range []int{1_000, 20_000} {
			b.Run(fmt.Sprintf("%s/%d", prefix, count), func(b *testing.B) {
				for range b.N {
					before := heap()
					a := newIPAM(b, time.Second)
					request := ipam.Request{Owner: "default/pod-0123456789", IPv4: prefix[0] == '1', IPv6: prefix[0] != '1'}
					if request.IPv4 {
						mustApply(b, a, prefix, "")
					} else {
						mustApply(b, a, "", prefix)
					}
					for range count {
						if _, err := a.Next(b.Context(), request); err != nil {
							b.Fatal(err)
						}
					}
					b.ReportMetric(float64(heap()-before)/float64(count), "B/address")
					runtime.KeepAlive(a)
				}
			})
		}
	}
}

// heap returns the heap in use after a garbage collection, in bytes.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
