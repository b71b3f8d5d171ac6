package node_test

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/pkg/datapath/tc"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/testnet"
	"github.com/waggle-net/waggle/test/nodekit"
	"github.com/waggle-net/waggle/test/nodekit/load"
)

// gentle returns rates that leave most of a machine to the other tests.
func gentle() load.Rates {
	return load.Rates{Connections: 40, Messages: 200, Datagrams: 1000, Connects: 20, Lies: 100}
}

// needBuilds skips the test on machines where no other agents can be built.
func needBuilds(t *testing.T) {
	t.Helper()
	if builds == nil {
		t.Skip("no go command is here, and another agent must be built: run where one is")
	}
}

func needCompiler(t *testing.T) {
	t.Helper()
	needBuilds(t)
	if _, err := exec.LookPath("clang-19"); err != nil {
		testnet.Missing(t, "needs the compiler: apt-get install clang-19 llvm-19 libbpf-dev linux-libc-dev")
	}
}

// agentWith builds an agent of another generation with replaced files.
func agentWith(t *testing.T, replace ...map[string]string) string {
	t.Helper()
	all := map[string]string{}
	for _, r := range replace {
		maps.Copy(all, r)
	}
	path, err := builds.Agent(nodekit.Build{Generation: otherGeneration, Replace: all, Name: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// edited returns a changed file of the module. The old text must be there.
func edited(t *testing.T, path, old, replacement string) map[string]string {
	t.Helper()
	replace, err := builds.Edit(path, func(text []byte) []byte {
		if !bytes.Contains(text, []byte(old)) {
			t.Fatalf("%s has no %q", path, old)
		}
		return bytes.Replace(text, []byte(old), []byte(replacement), 1)
	})
	if err != nil {
		t.Fatal(err)
	}
	return replace
}

// brokenObject replaces the first instruction of pod_egress's object for which match returns true.
func brokenObject(t *testing.T, match func(instruction []byte) bool, with [8]byte) map[string]string {
	t.Helper()
	replace, err := builds.Edit("bpf/pod_egress_bpfel.o", func(object []byte) []byte {
		file, err := elf.NewFile(bytes.NewReader(object))
		if err != nil {
			t.Fatal(err)
		}
		code := file.Section("tc")
		for at := code.Offset; at < code.Offset+code.Size; at += 8 {
			if match(object[at : at+8]) {
				object = bytes.Clone(object)
				copy(object[at:], with[:])
				return object
			}
		}
		t.Fatal("the program has no such instruction")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return replace
}

// The programs of a new agent do not load. Traffic is not interrupted, pods are attached and detached with the programs of the previous agent, the status
// reports the error, and an agent whose programs load recovers the node.
func TestPrivilegedGeneration_LoadFailure_KeepsPrevious(t *testing.T) {
	t.Parallel()
	needBuilds(t)
	for name, c := range map[string]struct {
		replace func(t *testing.T) map[string]string
		status  string // text that the status contains
	}{
		// r0 = *(u64 *)(r9 + 0) as the first instruction: r9 is not initialized.
		"the verifier rejects": {func(t *testing.T) map[string]string {
			return brokenObject(t, func([]byte) bool { return true }, [8]byte{0x79, 0x90})
		}, "R9 !read_ok"},
		// A call of a helper that no kernel has.
		"a function is missing": {func(t *testing.T) map[string]string {
			return brokenObject(t, func(i []byte) bool { return i[0] == 0x85 && i[1] == 0 }, [8]byte{0x85, 0, 0, 0, 0xff, 0xff, 0x0f, 0})
		}, "invalid func"},
		// Programs of the previous agent look up new pods in a map that this agent does not read.
		"the verifier rejects, and a map has another layout": {brokenAndAnotherLayout, "invalid mem access"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broken := agentWith(t, c.replace(t))
			node := startNode(t, roomy())
			before := hooks(t, node)
			traffic := startTraffic(t, node, gentle())
			if err := node.UpgradeAgent(t.Context(), broken); err != nil {
				t.Fatal(err)
			}
			awaitStatus(t, node, fmt.Sprintf("degraded: datapath generation %d", otherGeneration), c.status, "go back to the previous version of the agent")
			x, y := addPod(t, node, "new-x"), addPod(t, node, "new-y")
			pingBoth(t, x, y)
			if err := errors.Join(x.Check(t.Context()), x.Detach(t.Context())); err != nil {
				t.Error(err)
			}
			if now := hooks(t, node); now != before {
				t.Errorf("the hooks carried %q, now %q", before, now)
			}
			traffic.logf(t, "back to an agent that works")
			if err := node.UpgradeAgent(t.Context(), ""); err != nil {
				t.Fatal(err)
			}
			requireGeneration(t, node, thisGeneration)
			awaitStatusWithout(t, node, "degraded: datapath")
			if now := hooks(t, node); now == before {
				t.Error("the hooks still carry the first programs")
			}
			if err := y.Detach(t.Context()); err != nil {
				t.Error(err)
			}
			traffic.end(t)
		})
	}
}

// hooks returns the programs on the pods' links.
func hooks(t *testing.T, node *nodekit.Node) (text string) {
	t.Helper()
	if err := node.Do(func() error {
		handle, err := tc.Open()
		if err != nil {
			return err
		}
		defer handle.Close()
		for _, block := range []uint32{podlink.IngressBlock, podlink.EgressBlock} {
			filters, err := handle.Filters(tc.Block(block))
			if err != nil || len(filters) != 1 {
				return errors.Join(err, fmt.Errorf("block %#x has the filters %+v", block, filters))
			}
			text += fmt.Sprintf("%d ", filters[0].ProgramID)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return text
}

// upAndDown upgrades a node under load to another agent and back, twice. between runs after each step; upgraded says which agent runs then.
func upAndDown(t *testing.T, other string, between func(t *testing.T, node *nodekit.Node, upgraded bool)) {
	t.Helper()
	node := startNode(t, roomy())
	traffic := startTraffic(t, node, gentle())
	pod := addPod(t, node, "stays")
	for round := range 2 {
		for _, step := range []struct {
			agent      string
			generation int
		}{{other, otherGeneration}, {"", thisGeneration}} {
			traffic.logf(t, "to generation %d", step.generation)
			if err := node.UpgradeAgent(t.Context(), step.agent); err != nil {
				t.Fatal(err)
			}
			requireGeneration(t, node, step.generation)
			added := addPod(t, node, fmt.Sprintf("new-%d-%d", round, step.generation))
			pingBoth(t, pod, added)
			between(t, node, step.agent != "")
			if err := added.Detach(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
	if err := pod.Detach(t.Context()); err != nil {
		t.Error(err)
	}
	traffic.end(t)
}

// Maps of another size are created beside the existing ones, and traffic is not interrupted in either direction.
func TestPrivilegedGeneration_MapsOfAnotherSize(t *testing.T) {
	t.Parallel()
	needBuilds(t)
	bigger := agentWith(t, edited(t, "cells/datapath/maps/specs.go", "	for name, spec := range all {\n", `	for name, spec := range all {
		switch name {
		case bpf.MapEndpointFacts, bpf.MapLinks, bpf.MapEndpoints, bpf.MapIpcache, bpf.MapIpcachePrefixes, bpf.MapMetrics, bpf.MapEvents:
			spec.MaxEntries *= 2
		}
`))
	upAndDown(t, bigger, func(t *testing.T, node *nodekit.Node, upgraded bool) {
		want := uint32(4096)
		if upgraded {
			want *= 2
		}
		eventually(t, func() error {
			pins, err := mapPins(node)
			if err == nil && (pins["endpoint_facts_v2"] != want || pins["endpoint_facts_v2_resized"] != 0) {
				err = fmt.Errorf("want one map endpoint_facts of %d entries: %v", want, pins)
			}
			return err
		})
	})
}

// mapPins returns the maximum number of entries of each pinned map.
func mapPins(node *nodekit.Node) (pins map[string]uint32, err error) {
	pins = map[string]uint32{}
	err = node.Do(func() error {
		paths, err := filepath.Glob(filepath.Join(node.BPFRoot(), "waggle", "maps", "*"))
		for _, path := range paths {
			m, opened := ebpf.LoadPinnedMap(path, nil)
			if opened != nil {
				err = errors.Join(err, opened)
				continue
			}
			pins[filepath.Base(path)] = m.MaxEntries()
			_ = m.Close()
		}
		return err
	})
	return pins, err
}

// The next release swaps two fields of endpoint_facts and adds one. Programs of both releases find every endpoint in a map of their layout, and traffic is not
// interrupted in either direction.
func TestPrivilegedGeneration_MapOfAnotherLayout(t *testing.T) {
	t.Parallel()
	needCompiler(t)
	replace, err := builds.Datapath(nextLayout)
	if err != nil {
		t.Fatal(err)
	}
	upAndDown(t, agentWith(t, replace), func(t *testing.T, node *nodekit.Node, upgraded bool) {
		eventually(t, func() error {
			pins, err := mapPins(node)
			if err != nil || pins["endpoint_facts_v2"] == 0 || pins["endpoint_facts_v3"] != 0 != upgraded {
				return fmt.Errorf("upgraded %v, pinned are %v: %w", upgraded, pins, err)
			}
			return nil
		})
	})
}

func nextLayout(name, text string) string {
	switch name {
	case "endpoint.h":
		text = strings.Replace(text, "	__u32 ifindex;		/* host end of the pod's link */\n	__u32 identity;\n",
			"	__u32 identity;\n	__u32 ifindex;\n", 1)
		return strings.Replace(text, "	__u8 gateway_ipv6[16];\n};", "	__u8 gateway_ipv6[16];\n	__u32 added;\n};", 1)
	case "layouts.go":
		return nextLayouts
	}
	return text
}

// brokenAndAnotherLayout returns the files of the release of nextLayout, with a program that writes to an invalid address.
func brokenAndAnotherLayout(t *testing.T) map[string]string {
	needCompiler(t)
	replace, err := builds.Datapath(func(name, text string) string {
		if name == "pod_egress.c" {
			const verdictLine = "	verdict v = evaluate(skb, &obs);\n"
			if !strings.Contains(text, verdictLine) {
				t.Errorf("%s has no %q", name, verdictLine)
			}
			return strings.Replace(text, verdictLine, verdictLine+"	*(volatile __u32 *)(unsigned long)skb->len = 1;\n", 1)
		}
		return nextLayout(name, text)
	})
	if err != nil {
		t.Fatal(err)
	}
	return replace
}

// nextLayouts is layouts.go of the release of nextLayout.
const nextLayouts = `package bpf

import (
	"slices"
	"strconv"

	"github.com/cilium/ebpf"
)

func LayoutVersion(name string) uint32 {
	switch name {
	case MapEndpointFacts:
		return 3
	case MapIpcache, MapIpcachePrefixes, MapCIDRs, MapAffinity:
		return 2
	}
	return 1
}

type PreviousLayout struct {
	Version       uint32
	Spec          *ebpf.MapSpec
	Forward, Back Convert
	Partial       bool
}

type Convert func(key, value []byte) (newKey, newValue []byte, exists bool)

func PreviousLayoutOf(name string) *PreviousLayout {
	if name != MapEndpointFacts {
		return nil
	}
	swapped := func(v []byte) []byte { return slices.Concat(v[4:8], v[:4], v[8:104]) }
	return &PreviousLayout{Version: 2,
		Spec:    &ebpf.MapSpec{Name: MapEndpointFacts, Type: ebpf.Array, KeySize: 4, ValueSize: 104, MaxEntries: 4096},
		Forward: func(k, v []byte) ([]byte, []byte, bool) { return k, append(swapped(v), 0, 0, 0, 0), true },
		Back:    func(k, v []byte) ([]byte, []byte, bool) { return k, swapped(v), true },
	}
}

func PinName(name string, version uint32) string {
	return name + "_v" + strconv.FormatUint(uint64(version), 10)
}
`

// The next release uses another mark between its programs and the nftables rule. While one agent replaces the objects of the other, in either direction, the
// rule passes all valid packets and no spoofed one.
func TestPrivilegedGeneration_AnotherProtocolBetweenHooks(t *testing.T) {
	t.Parallel()
	needCompiler(t)
	replace, err := builds.Datapath(func(name, text string) string {
		switch name {
		case "protocol.h":
			return strings.Replace(text, "PROTOCOL_HIGHEST = 4", "PROTOCOL_HIGHEST = 5", 1)
		case "mark.h":
			return strings.Replace(text, "| MARK_MAGIC_IDENTITY;", "|\n	       (protocol_written() == 5 ? 0x0e00 : MARK_MAGIC_IDENTITY);", 1)
		}
		return text
	})
	if err != nil {
		t.Fatal(err)
	}
	// Under the wider mask, 0x0f00 and 0x0e00 are both marks of Waggle.
	next := agentWith(t, replace, edited(t, "pkg/podlink/podlink.go", "	MarkMagic uint32 = 0x0f00\n	MarkMask  uint32 = 0x0f00\n",
		"	MarkMagic uint32 = 0x0e00\n	MarkMask  uint32 = 0x0e00\n"))
	upAndDown(t, next, func(t *testing.T, node *nodekit.Node, upgraded bool) {
		want := "protocol=4"
		if upgraded {
			want = "protocol=5"
		}
		eventually(t, func() error {
			text, err := node.Waggle(t.Context(), "shell", "--", "maps/dump", "datapath")
			if err == nil && !strings.Contains(text, want) {
				err = fmt.Errorf("want %s: %s", want, text)
			}
			return err
		})
	})
}
