package loader

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

var errVerifier = fmt.Errorf("load program pod_egress: %w", &ebpf.VerifierError{Cause: unix.EACCES, Log: []string{
	"0: R1=ctx() R10=fp0", "; int pod_egress(struct __sk_buff *skb)", "0: (79) r0 = *(u64 *)(r9 +0)", "R9 !read_ok",
	"processed 1 insns (limit 1000000) max_states_per_insn 0"}})

func TestExplain_NamesRemedy(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err   error
		wants []string
	}{
		"the verifier rejects a program": {errVerifier,
			[]string{"r0 = *(u64 *)(r9 +0) | R9 !read_ok;", "does not accept the programs: go back to the previous version of the agent"}},
		"a function is missing": {fmt.Errorf("load program pod_egress: %w", &ebpf.VerifierError{Cause: unix.EINVAL,
			Log: []string{"12: (85) call unknown#99999", "invalid func unknown#99999", "processed 13 insns"}}),
			[]string{"call unknown#99999 | invalid func unknown#99999;", "go back to the previous version of the agent"}},
		"a feature is missing": {fmt.Errorf("ring buffers: %w", ebpf.ErrNotSupported), []string{"run Linux 6.1 or newer"}},
		"no memory":            {fmt.Errorf("load program pod_egress: %w", unix.ENOMEM), []string{"free memory on the node"}},
		"a map does not fit":   {fmt.Errorf("map metrics: %w", ebpf.ErrMapIncompatible), []string{"see the table bpf-maps"}},
		"no rights":            {fmt.Errorf("load program pod_egress: %w", unix.EPERM), []string{"CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN"}},
	} {
		got := explain(c.err).Error()
		for _, want := range c.wants {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %q does not say %q", name, got, want)
			}
		}
		if strings.Contains(got, "processed ") {
			t.Errorf("%s: the verifier's own accounts are no cause: %q", name, got)
		}
	}
}

func TestLastLines_AreFew(t *testing.T) {
	t.Parallel()
	log := make([]string, 5000)
	for i := range log {
		log[i] = fmt.Sprint("line ", i)
	}
	if got := lastLines(log); strings.Count(got, "|") != verifierLines-1 || !strings.HasSuffix(got, "line 4999") {
		t.Errorf("got %q", got)
	}
}
