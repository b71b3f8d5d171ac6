package servicemaps

import (
	"testing"

	"github.com/waggle-net/waggle/pkg/testseed"
)

// TestRuns_AgreesWithANaiveModel allocates and frees at random. Runs never overlap, an allocation fails only if there is no such free run, and longest returns
// the length of the longest free run.
func TestRuns_AgreesWithANaiveModel(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	for range 200 {
		size := 1 + random.Uint32N(400)
		r, model := newRuns(size), make([]bool, size)
		var held [][2]uint32
		for range 300 {
			if want := taken(model); r.used != want {
				t.Fatalf("%d of %d are said to be taken, want %d", r.used, size, want)
			}
			n := random.Uint32N(1 + random.Uint32N(60))
			switch kind := random.IntN(4); {
			case kind == 0 && len(held) > 0:
				i := random.IntN(len(held))
				r.give(held[i][0], held[i][1])
				mark(model, held[i], false)
				held[i] = held[len(held)-1]
				held = held[:len(held)-1]
			case kind == 1:
				first := random.Uint32N(size + 10)
				want := allFree(model, first, n)
				if got := r.take(first, n); got != want {
					t.Fatalf("take %d from %d of %d: %v", n, first, size, got)
				}
				if want {
					held = append(held, [2]uint32{first, n})
					mark(model, held[len(held)-1], true)
				}
			default:
				if most := r.longest(); !anyFree(model, most) || anyFree(model, most+1) {
					t.Fatalf("the longest run of %d is said to be %d", size, most)
				}
				first, found := r.get(n)
				if found != anyFree(model, n) {
					t.Fatalf("get %d of %d: %v", n, size, found)
				}
				if found {
					if !allFree(model, first, n) {
						t.Fatalf("get %d of %d: %d is taken", n, size, first)
					}
					held = append(held, [2]uint32{first, n})
					mark(model, held[len(held)-1], true)
				}
			}
		}
	}
}

func mark(model []bool, run [2]uint32, taken bool) {
	for i := run[0]; i < run[0]+run[1]; i++ {
		model[i] = taken
	}
}

func taken(model []bool) (n uint32) {
	for _, is := range model {
		if is {
			n++
		}
	}
	return n
}

func allFree(model []bool, first, n uint32) bool {
	if int(first)+int(n) > len(model) {
		return false
	}
	for _, taken := range model[first : first+n] {
		if taken {
			return false
		}
	}
	return true
}

func anyFree(model []bool, n uint32) bool {
	for first := range model {
		if allFree(model, uint32(first), n) {
			return true
		}
	}
	return false
}
