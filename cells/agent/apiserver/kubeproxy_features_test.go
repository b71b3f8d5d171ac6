package apiserver

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/api/v1/models"
)

// Clients of Cilium dereference each feature without a check, including disabled ones: "cilium-dbg status --verbose" crashed without socketLBTracing.
func TestKubeProxyReplacement_NamesFeaturesThatAreOff(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(models.KubeProxyReplacement{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"features", "socketLB", "socketLBTracing", "nodePort", "hostPort", "externalIPs", "sessionAffinity", "gracefulTermination", "nat46X64"} {
		if !strings.Contains(string(text), `"`+name+`":{`) {
			t.Errorf("%s is missing: %s", name, text)
		}
	}
}
