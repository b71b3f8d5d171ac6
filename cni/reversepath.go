package cni

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// relaxReversePath makes the host accept packets from a pod. The route to the pod uses another device of Waggle, so strict reverse path filtering, which can
// be a node's default for new links, silently drops every packet from the pod to the host. The agent maintains the setting; the plugin sets it because the
// first packet may follow ADD immediately.
func relaxReversePath(hostName string) error {
	path := "/proc/sys/net/ipv4/conf/" + hostName + "/rp_filter"
	value, err := os.ReadFile(path)
	if err == nil && strings.TrimSpace(string(value)) != "0" {
		err = os.WriteFile(path, []byte("0"), 0)
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil // there is no IPv4, or the link was deleted, which the next step reports more clearly
	}
	if err != nil {
		return fmt.Errorf("turn off reverse path checks of %s: %w", hostName, err)
	}
	return nil
}
