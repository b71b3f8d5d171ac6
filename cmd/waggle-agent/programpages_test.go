package main

import (
	"testing"

	"github.com/prometheus/procfs"
)

func TestUnmapProgram(t *testing.T) {
	mapped := func() uint64 {
		self, err := procfs.Self()
		if err != nil {
			t.Fatal(err)
		}
		status, err := self.NewStatus()
		if err != nil {
			t.Fatal(err)
		}
		return status.RssFile
	}
	before := mapped()
	if err := unmapProgram(); err != nil {
		t.Fatal(err)
	}
	if after := mapped(); after > before/2 {
		t.Errorf("%d bytes of files are mapped, and %d were before", after, before)
	}
}
