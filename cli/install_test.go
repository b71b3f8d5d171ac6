package cli

import (
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/install"
)

// TestInstall_PrintsManifests checks that install prints to stdout only, needs no agent, and reports mistakes as command line errors.
func TestInstall_PrintsManifests(t *testing.T) {
	t.Parallel()
	code, out, errs := run(t, "/nowhere", "install")
	if code != exitOK || errs != "" || !strings.HasPrefix(out, "# Waggle ") || !strings.Contains(out, "\nkind: DaemonSet\n") ||
		!strings.Contains(out, "image: "+install.DefaultImage()+"\n") {
		t.Errorf("exit %d, %q, %.200q", code, errs, out)
	}
	code, out, _ = run(t, "/nowhere", "install", "--only", "crds", "-o", "json")
	if code != exitOK || !strings.HasPrefix(out, "{") || strings.Contains(out, "DaemonSet") {
		t.Errorf("exit %d, %.200q", code, out)
	}
	code, out, errs = run(t, "/nowhere", "install", "--set", "enable-ip4=true", "--set", "debug")
	if code != exitUsage || out != "" || !strings.Contains(errs, `the nearest known one is "--enable-ipv4"`) || strings.Count(errs, "\n") != 1 {
		t.Errorf("exit %d, %q, %q", code, errs, out)
	}
}
