package nodekit

import "testing"

func TestChanges(t *testing.T) {
	t.Parallel()
	if err := Changes([]string{"a", "b"}, []string{"b", "a"}); err != nil {
		t.Error(err)
	}
	if err := Changes([]string{"a", "b"}, []string{"b", "c"}); err == nil || err.Error() != "gone: a\nnew: c" {
		t.Errorf("got %v", err)
	}
}
