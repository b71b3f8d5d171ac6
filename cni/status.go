package cni

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/waggle-net/waggle/pkg/agentclient"
)

// statusTimeout is the time for which STATUS waits for an agent that is absent or starting. One failure makes the node not ready, so STATUS outlasts the
// replacement of an agent. Runtimes set no limit. Kubelet reports a runtime that has not answered for 30 s as down, and asks 5 s after each answer.
const statusTimeout = 15 * time.Second

// status returns nil if the agent can attach pods. Code 50 makes the runtime report its node as not ready, and Kubernetes evicts the pods of a node that stays
// not ready. A full range therefore does not fail STATUS, although the specification asks for it: it fails ADD, and the pods that have addresses stay.
func (p *plugin) status(ctx context.Context, conf *netConf, _ *skel.CmdArgs) error {
	wait := statusTimeout
	if _, err := os.Stat(conf.StateDir); errors.Is(err, fs.ErrNotExist) {
		wait = 0 // no agent has run since the boot, and kubelet starts none before the first STATUS has ended
	}
	agent := agentclient.New(conf.SocketPath)
	if _, err := agent.WaitConfig(ctx, agentclient.Timeouts{Absent: wait, Starting: wait}); err != nil {
		failed := agentFailure(types.ErrPluginNotAvailable, agent, err)
		failed.Code = types.ErrPluginNotAvailable // also where another command would be repeated
		return failed
	}
	return nil
}
