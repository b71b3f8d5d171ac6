package cli

import (
	"testing"

	"github.com/waggle-net/waggle/pkg/tables/bpfprograms"
)

func TestProgramsText_SaysWhyAGenerationIsNotLoaded(t *testing.T) {
	t.Parallel()
	got := programsText([]bpfprograms.Program{{Name: "pod_egress", Generation: 3, Error: "R9 !read_ok"}})
	if want := "degraded: datapath generation 3, programs of an earlier run are kept: R9 !read_ok"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := programsText(nil); got != "-" {
		t.Errorf("without rows: %q", got)
	}
}
