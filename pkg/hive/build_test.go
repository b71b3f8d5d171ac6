package hive

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"
)

type (
	honey  struct{}
	pollen interface{ Grains() int }
	wax    struct{}
	limits struct{ MaxBees int }
)

func (limits) Flags(f *pflag.FlagSet) { f.Int("max-bees", 1, "Bees") }

type memoryHealth struct{ root *cell.SimpleHealth }

func (h memoryHealth) ForModule(id cell.FullModuleID) cell.Health {
	return h.root.NewScope(id.String())
}

func newHoney() honey           { return honey{} }
func newHoneyAgain() honey      { return honey{} }
func newSweet(pollen) honey     { return honey{} }
func newSour() (honey, error)   { return honey{}, errors.New("no flowers") }
func newWax(honey) wax          { return wax{} }
func newHoneyFromWax(wax) honey { return honey{} }

// TestBroken builds hives with one mistake each and checks the text of the error.
func TestBroken(t *testing.T) {
	t.Parallel()
	needHoney := cell.Invoke(func(honey) {})
	for name, c := range map[string]struct {
		cells []cell.Cell
		want  []string
	}{
		"a constructor is missing": {
			[]cell.Cell{cell.Module("comb", "Comb", cell.Provide(newSweet), needHoney)},
			[]string{".newSweet (", "build_test.go:", "missing type: hive.pollen"},
		},
		"two constructors are missing": {
			[]cell.Cell{cell.Invoke(func(honey, pollen) {})},
			[]string{"TestBroken", "build_test.go:", "missing types: hive.honey", "hive.pollen"},
		},
		"a constructor is doubled": {
			[]cell.Cell{cell.Module("one", "One", cell.Provide(newHoney)), cell.Module("two", "Two", cell.Provide(newHoneyAgain))},
			[]string{"cannot provide hive.honey", ".newHoneyAgain (", "already provided by ", ".newHoney ("},
		},
		"a private constructor is doubled": {
			[]cell.Cell{cell.Module("one", "One", cell.ProvidePrivate(newHoney), cell.ProvidePrivate(newHoneyAgain))},
			[]string{"cannot provide hive.honey", "already provided by "},
		},
		"a constructor fails": {
			[]cell.Cell{cell.Provide(newSour, newWax), cell.Invoke(func(wax) {})},
			[]string{"no flowers"},
		},
		"an invoked function fails": {
			[]cell.Cell{cell.Invoke(func() error { return errors.New("no flowers") })},
			[]string{"no flowers"},
		},
		"constructors need each other": {
			[]cell.Cell{cell.Provide(newWax, newHoneyFromWax), needHoney},
			[]string{"cycle detected", ".newWax ", ".newHoneyFromWax"},
		},
		"a flag is declared twice": {
			[]cell.Cell{cell.Module("one", "One", cell.Config(limits{})), cell.Module("two", "Two", cell.Config(limits{}))},
			[]string{"'max-bees' declared twice"},
		},
		"a module has a bad name": {
			[]cell.Cell{cell.Config(badModule{})},
			[]string{`Invalid hive.Module id: "B"`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, err := Build(c.cells...)
			if err == nil {
				err = Populate(h, slog.New(slog.DiscardHandler))
			}
			if err == nil {
				t.Fatal("the hive was built")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("not one line: %q", err)
			}
		})
	}
}

// badModule panics as hive does for a bad module id, from inside Build.
type badModule struct{ MaxWax int }

func (badModule) Flags(*pflag.FlagSet) { panic(`Invalid hive.Module id: "B"`) }

// TestNew_EachModuleHasOwnHealthAndJobs checks that each module gets its own health reporter and job group.
func TestNew_EachModuleHasOwnHealthAndJobs(t *testing.T) {
	t.Parallel()
	h, err := Build(
		statedb.Cell, job.Cell,
		cell.Provide(
			cell.NewSimpleHealth,
			func(root *cell.SimpleHealth) HealthSource { return memoryHealth{root} },
		),
		cell.Module("comb", "Comb", cell.Invoke(func(health cell.Health, jobs job.Group, log *slog.Logger) error {
			if simple, ok := health.(*cell.SimpleHealth); !ok || simple.Scope != "comb" || jobs == nil || log == nil {
				return errors.New("the module did not get objects of its own")
			}
			return nil
		})),
	)
	if err != nil {
		t.Fatal(err)
	}
	if err := Populate(h, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
}
