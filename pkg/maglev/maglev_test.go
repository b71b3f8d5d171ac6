package maglev

import (
	"fmt"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/testseed"
)

func names(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("10.0.%d.%d:80/TCP", i/250, i%250)
	}
	return out
}

const size = 16381

func TestTable_BackendsGetEqualSlots(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 3, 100, 250} {
		for _, size := range Sizes() {
			counts := make([]int, n)
			for _, i := range Table(names(n), size, Seed{}) {
				counts[i]++
			}
			for i, c := range counts {
				if c != size/n && c != size/n+1 {
					t.Fatalf("%d backends, %d slots: number %d has %d", n, size, i, c)
				}
			}
		}
	}
}

func TestTable_IndependentOfBackendOrder(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	have := names(50)
	want := Table(have, size, Seed{1})
	mixed := names(50)
	random.Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
	other := 0
	for slot, i := range Table(mixed, size, Seed{1}) {
		if mixed[i] != have[want[slot]] {
			t.Fatalf("slot %d: %s and %s", slot, mixed[i], have[want[slot]])
		}
	}
	for slot, i := range Table(have, size, Seed{2}) {
		if have[i] != have[want[slot]] {
			other++
		}
	}
	if other < size/2 {
		t.Errorf("another seed changes %d of %d slots only", other, size)
	}
}

// TestTable_FewClientsMove checks the paper's bound for added and removed backends, with a table a hundred times as large.
func TestTable_FewClientsMove(t *testing.T) {
	t.Parallel()
	all := names(100)
	before := Table(all, size, Seed{})
	for gone := range all {
		left := append(append([]string(nil), all[:gone]...), all[gone+1:]...)
		moved, stayed := 0, 0
		for slot, i := range Table(left, size, Seed{}) {
			switch was := all[before[slot]]; {
			case was == all[gone]:
			case was == left[i]:
				stayed++
			default:
				moved++
			}
		}
		if moved*20 > stayed {
			t.Errorf("without %s, %d of the other %d slots have changed", all[gone], moved, moved+stayed)
		}
	}
}

func TestParseSeed(t *testing.T) {
	t.Parallel()
	if _, err := ParseSeed("JLfvgnHc2kaSUFaI"); err != nil {
		t.Error(err)
	}
	for text, want := range map[string]string{"JLfv": "it has 3 bytes", "": "it has 0 bytes", "?": "illegal base64",
		"JLfvgnHc2kaSUFaIJLfv": "it has 15 bytes"} {
		if _, err := ParseSeed(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
	if CheckSize(16381) != nil || CheckSize(16384) == nil {
		t.Error("the sizes are those of primes")
	}
}

func BenchmarkTable(b *testing.B) {
	for _, n := range []int{2, 100} {
		all := names(n)
		b.Run(fmt.Sprint(n, " backends"), func(b *testing.B) {
			for b.Loop() {
				Table(all, size, Seed{})
			}
		})
	}
}
