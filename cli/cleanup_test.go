package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/waggle-net/waggle/pkg/inventory"
)

// pathsOf parses a command line as the commands do.
func pathsOf(t *testing.T, environ []string, args ...string) (inventory.Paths, error) {
	t.Helper()
	cmd := withPaths(&cobra.Command{Use: "x"})
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	return readPaths(cmd.Flags(), environ)
}

func TestReadPaths_AsTheAgentDoes(t *testing.T) {
	t.Parallel()
	p, err := pathsOf(t, nil)
	if err != nil || p.StateDir != "/var/run/waggle" || p.LibDir != "/var/lib/waggle" || p.BPFRoot != "/sys/fs/bpf" || p.Procfs != "/proc" ||
		p.CNIConf != "/etc/cni/net.d/05-waggle.conflist" || p.CNIBinDir != "/opt/cni/bin" || p.CNILog != "" || p.Socket != "" {
		t.Errorf("defaults: %+v, %v", p, err)
	}
	dir := t.TempDir()
	for name, value := range map[string]string{"state-dir": "/run/other/\n", "lib-dir": "/lib/other", "enable-ipv6": "true", "enable-hubble": "true"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p, err = pathsOf(t, []string{"WAGGLE_BPF_ROOT=/bpf", "WAGGLE_SOCK=/x"}, "--config-dir", dir, "--lib-dir=/lib/typed")
	if err != nil || p.StateDir != "/run/other" || p.LibDir != "/lib/typed" || p.BPFRoot != "/bpf" {
		t.Errorf("directory, environment and flag: %+v, %v", p, err)
	}
	for _, bad := range [][]string{{"--state-dir=here"}, {"--lib-dir="}, {"--cni-bin-dir=bin"}, {"--config-dir=/nowhere/at/all"}, {"--socket-path=x"}} {
		if _, err := pathsOf(t, nil, bad...); err == nil || !strings.Contains(err.Error(), strings.SplitN(bad[0], "=", 2)[0]) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

func TestVersion_JSON(t *testing.T) {
	t.Parallel()
	socket := serve(t, fakeAPI{"GET /v1/healthz": `{"agent":{"version":"v7"}}`})
	if code, out, errs := run(t, socket, "version", "-o", "json"); code != 0 || !strings.Contains(out, `"agent": "v7"`) || !strings.Contains(out, `"waggle": `) {
		t.Errorf("exit %d, %s%s", code, out, errs)
	}
	if code, out, _ := run(t, filepath.Join(t.TempDir(), "none"), "version", "-o", "json"); code != 0 || strings.Contains(out, "agent") {
		t.Errorf("without an agent: exit %d, %s", code, out)
	}
	if code, out, _ := run(t, filepath.Join(t.TempDir(), "none"), "version"); code != 0 || !strings.Contains(out, "does not run") {
		t.Errorf("without an agent: exit %d, %s", code, out)
	}
}

func TestComplain_OneLineForEachError(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	complain(&out, errors.Join(errors.New("a\x1b[2J"), errors.New("b")))
	if got, want := out.String(), "waggle: a\\x1b[2J\nwaggle: b\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	out.Reset()
	complain(&out, errors.New(strings.Repeat("x\n", 29)+"x"))
	if got := out.String(); strings.Count(got, "\n") != 21 || !strings.HasSuffix(got, "and 10 more\n") {
		t.Errorf("got %q", got)
	}
}
