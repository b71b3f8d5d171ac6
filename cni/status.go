package cni

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/agentclient"
)

// statusTimeout is short because runtimes call STATUS every few seconds.
const statusTimeout = 5 * time.Second

// status returns nil if an ADD could succeed now. Code 50 makes the runtime report its node as not ready.
func (p *plugin) status(ctx context.Context, conf *netConf, args *skel.CmdArgs) error {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	agent := agentclient.New(conf.SocketPath)
	config, err := agent.PodConfig(ctx)
	if err != nil {
		return failure(types.ErrPluginNotAvailable, err, agentRemedy(conf.SocketPath))
	}
	if config.Agent.State == models.AgentStateStateStarting {
		return failure(types.ErrPluginNotAvailable,
			fmt.Errorf("the agent is starting: it waits for %s", strings.Join(config.Agent.WaitingFor, "; ")), "see waggle status")
	}
	addresses, err := agent.IPAMStatus(ctx)
	if err != nil {
		return failure(types.ErrPluginNotAvailable, err, "see waggle status")
	}
	if exhausted(addresses) {
		return failure(types.ErrPluginNotAvailable, errors.New("no address is left: "+addresses),
			"see waggle ipam list for their owners")
	}
	return nil
}

// exhausted parses "IPv4: 254/254 allocated from 10.0.0.0/24, IPv6: ..." and reports whether any family has no free address.
func exhausted(status string) bool {
	words := strings.Fields(status)
	for i := 1; i < len(words); i++ {
		if words[i] != "allocated" {
			continue
		}
		used, total, ok := strings.Cut(words[i-1], "/")
		u, err1 := strconv.ParseUint(used, 10, 64)
		t, err2 := strconv.ParseUint(total, 10, 64)
		if ok && err1 == nil && err2 == nil && u >= t {
			return true
		}
	}
	return false
}
