package sysctl

import (
	"fmt"
	"path"
	"strings"
)

// validName returns an error unless name is the path of a setting of the network namespace, such as "net/ipv4/conf/all/rp_filter". Names contain interface
// names from outside the agent, so a name must not lead out of net/.
func validName(name string) error {
	if !strings.HasPrefix(name, "net/") || path.Clean(name) != name || strings.ContainsAny(name, "\x00\n") {
		return fmt.Errorf("sysctl %q: not a clean path below net/", name)
	}
	return nil
}
