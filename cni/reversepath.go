package cni

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// relaxReversePath lets the host accept what a pod sends. The route back to a pod leaves by another device of ours, so
// strict checking, which a node may have as its default for new links, drops every packet from pod to host without a
// trace. The agent keeps the value; it is set here because the first packet may follow ADD at once.
func relaxReversePath(hostName string) error {
	path := "/proc/sys/net/ipv4/conf/" + hostName + "/rp_filter"
	value, err := os.ReadFile(path)
	if err == nil && strings.TrimSpace(string(value)) != "0" {
		err = os.WriteFile(path, []byte("0"), 0)
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil // no IPv4, or the link is gone, which the next step says better
	}
	if err != nil {
		return fmt.Errorf("turn off reverse path checks of %s: %w", hostName, err)
	}
	return nil
}
