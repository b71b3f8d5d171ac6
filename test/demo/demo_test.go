package main

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/waggle-net/waggle/pkg/testnet"
	"github.com/waggle-net/waggle/test/nodekit"
)

// binDir is the folder with the programs for the demonstration.
var binDir string

// TestMain runs the tests in a process of their own, as main runs the demonstration.
func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		os.Exit(m.Run()) // the tests are skipped with a reason
	}
	os.Exit(nodekit.Contain(func() int {
		dir, err := os.MkdirTemp("", "waggle-demo-")
		if err == nil {
			defer func() { _ = os.RemoveAll(dir) }()
			err = nodekit.BuildPrograms(dir)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		binDir = dir
		return m.Run()
	}))
}

// The demonstration returns an error when a step fails.
func TestPrivilegedDemo(t *testing.T) {
	for name, plan := range map[string]func(*demo) []step{"one node": (*demo).oneNode, "two nodes": (*demo).twoNodes} {
		t.Run(name, func(t *testing.T) {
			testnet.RequirePrivileges(t)
			d := &demo{out: t.Output(), bin: binDir, start: time.Now()}
			if err := d.run(plan(d)); err != nil {
				t.Fatal(err)
			}
		})
	}
}
