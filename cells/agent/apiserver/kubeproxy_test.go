package apiserver

import "testing"

// TestMasquerading_IPMasqAgent: the flag decides whether the agent of the file is reported, even if all prefixes of the file have other reasons, or none is
// left.
func TestMasquerading_IPMasqAgent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.api.Settings.MasqueradeIPv4 = true
	for _, on := range []bool{true, false} {
		f.api.Flags = map[string]any{"enable-ip-masq-agent": on}
		if got := f.api.masquerading(f.api.DB.ReadTxn()); got.IPMasqAgent != on || !got.Enabled {
			t.Errorf("with the flag %v: %+v", on, got)
		}
	}
}
