package sysctl

import (
	"fmt"
	"path"
	"strings"
)

// validName accepts paths of settings of the network namespace, "net/ipv4/conf/all/rp_filter", and nothing that leads
// elsewhere: names hold interface names, which come from outside.
func validName(name string) error {
	if !strings.HasPrefix(name, "net/") || path.Clean(name) != name || strings.ContainsAny(name, "\x00\n") {
		return fmt.Errorf("sysctl %q: not a clean path below net/", name)
	}
	return nil
}
