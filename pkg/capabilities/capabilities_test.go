package capabilities

import (
	"testing"

	"golang.org/x/sys/unix"
)

// Tests of whole nodes check that all threads drop their capabilities: they run the agent as a process of its own.

func TestSet_String(t *testing.T) {
	t.Parallel()
	for set, want := range map[Set]string{0: "none", Agent: "NET_ADMIN,PERFMON,BPF", Namespaces: "SYS_ADMIN", Probes: "NET_RAW", 1<<unix.CAP_SYS_PTRACE | 1<<unix.CAP_BPF: "19,BPF"} {
		if got := set.String(); got != want {
			t.Errorf("%#x: %s, want %s", uint64(set), got, want)
		}
	}
}

func TestCurrent_UnknownSet_Fails(t *testing.T) {
	t.Parallel()
	if _, err := current("CapNone"); err == nil {
		t.Error("a set that the kernel does not have was read")
	}
	if _, err := Effective(); err != nil {
		t.Error(err)
	}
}
