package servicemap

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestChosenList(t *testing.T) {
	t.Parallel()
	choose := func(given ...string) (string, error) {
		return ChosenList(func(flag string) (bool, error) { return slices.Contains(given, flag), nil })
	}
	if only, err := choose(); err != nil || only != "" {
		t.Errorf("none: %q, %v", only, err)
	}
	for i, l := range Lists() {
		if only, err := choose(l.Name); err != nil || only != l.Name {
			t.Errorf("--%s: %q, %v", l.Name, only, err)
		}
		for _, other := range Lists()[i+1:] {
			if _, err := choose(l.Name, other.Name); err == nil || !strings.Contains(err.Error(), "--"+l.Name+" and --"+other.Name) {
				t.Errorf("--%s --%s: %v", l.Name, other.Name, err)
			}
		}
	}
	broken := errors.New("no such flag")
	if _, err := ChosenList(func(string) (bool, error) { return false, broken }); !errors.Is(err, broken) {
		t.Errorf("a flag that is not there: %v", err)
	}
}
