package setup

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/agentclient"
	"github.com/waggle-net/waggle/pkg/selftestreport"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/version"
)

const (
	// containerPrefix is the prefix of container ids of self-tests, so that the next test finds the remains of a killed one.
	containerPrefix = "waggle-self-test-"
	interfaceName   = "eth0"
)

// attempt waits for the agent, runs the self-test once, and reports the result unless ctx has ended.
func attempt(ctx context.Context, log *slog.Logger, o Options, folders string) error {
	boot, err := selftestreport.BootID()
	if err != nil {
		return err
	}
	agent := agentclient.New(o.SocketPath)
	if err := waitReady(ctx, log, agent); err != nil {
		return err
	}
	steps, tried := try(ctx, o, agent)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	report := selftestreport.Report{BootID: boot, Version: version.String(), At: time.Now().UTC(), Steps: steps, Folders: folders}
	if tried != nil {
		report.Error = tried.Error()
	}
	if err := errors.Join(tried, selftestreport.Write(o.StateDir, report)); err != nil {
		return err
	}
	var took []any
	for _, s := range steps {
		took = append(took, slog.Duration(s.Name, s.Duration))
	}
	log.Info("The self-test passed", slog.Group("took", took...))
	return nil
}

// waitReady waits until the agent reports that pods can be attached, and logs the missing conditions.
func waitReady(ctx context.Context, log *slog.Logger, agent *agentclient.Client) error {
	const pause = 200 * time.Millisecond
	var logged string
	for {
		status, err := agent.Status(ctx, true)
		why := ""
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			why = err.Error()
		case status.Cilium.State == models.StatusStateFailure:
			why = status.Cilium.Msg
		default:
			return nil
		}
		if why != logged {
			log.Info("Waiting for the agent", "why", why)
			logged = why
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// try runs the steps of the self-test in order and stops at the first failure.
func try(ctx context.Context, o Options, agent *agentclient.Client) (steps []selftestreport.Step, err error) {
	t := &trial{agent: agent, plugin: &plugin{
		path:   filepath.Join(o.CNIBinDir, PluginName),
		config: config{Name: "waggle", Type: PluginName, SocketPath: o.SocketPath, StateDir: o.StateDir, LogFile: o.LogFile},
	}}
	random := make([]byte, 8)
	_, _ = rand.Read(random) // never fails
	t.container = containerPrefix + hex.EncodeToString(random)
	for _, step := range []struct {
		name string
		take func(context.Context) error
	}{
		{"clean", t.clean}, {"namespace", t.makeNamespace}, {"ADD", t.add}, {"ping", t.ping}, {"CHECK", t.check},
		{"DEL", t.del}, {"verify", t.verify},
	} {
		begin := time.Now()
		err = step.take(ctx)
		steps = append(steps, selftestreport.Step{Name: step.name, Duration: time.Since(begin)})
		if err != nil {
			err = fmt.Errorf("%s: %w", step.name, err)
			break
		}
	}
	return steps, errors.Join(err, t.close(ctx))
}

// trial is one self-test.
type trial struct {
	agent     *agentclient.Client
	plugin    *plugin
	container string
	ns        *namespace
	added     bool // ADD was called, and no DEL has succeeded since
	result    *result
}

// clean removes the endpoints of killed self-tests. Their namespaces ended with their processes.
func (t *trial) clean(ctx context.Context) error {
	endpoints, err := t.agent.Endpoints(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range endpoints {
		id := e.Status.ExternalIdentifiers.ContainerID
		if strings.HasPrefix(id, containerPrefix) {
			if err := t.plugin.call(ctx, "DEL", id, "", nil, nil); err != nil {
				errs = append(errs, fmt.Errorf("remove the remains of a previous self-test: %w", err))
			}
		}
	}
	return errors.Join(errs...)
}

func (t *trial) makeNamespace(context.Context) (err error) {
	t.ns, err = newNamespace()
	return err
}

func (t *trial) add(ctx context.Context) error {
	t.added = true
	t.result = &result{}
	if err := t.plugin.call(ctx, "ADD", t.container, t.ns.path(), nil, t.result); err != nil {
		return err
	}
	if len(t.result.IPs) == 0 {
		return errors.New("the plugin's result has no address")
	}
	return nil
}

// ping sends echo requests from the pod to the gateway of each family and to the node's addresses. If a policy isolates the pod's egress, the node pings the
// pod instead: policies always allow this unless they are configured to apply to the node as well.
func (t *trial) ping(ctx context.Context) error {
	policy, err := t.policy(ctx)
	switch {
	case err != nil:
		return err
	case policy.Egress.Isolated:
		for _, ip := range t.result.IPs {
			if err := ping(ctx, ip.Address.Addr()); err != nil {
				return fmt.Errorf("policies isolate egress of the pod, so the node pings it: %w", err)
			}
		}
		return nil
	}
	nodes, err := agentclient.Rows[localnode.LocalNode](ctx, t.agent, "local-node")
	if err != nil {
		return err
	}
	var targets []netip.Addr
	families := map[bool]bool{}
	for _, ip := range t.result.IPs {
		families[ip.Address.Addr().Is6()] = true
		targets = append(targets, ip.Gateway)
	}
	for _, n := range nodes {
		for _, addr := range []netip.Addr{n.IPv4.NodeIP, n.IPv6.NodeIP} {
			if addr.IsValid() && families[addr.Is6()] {
				targets = append(targets, addr)
			}
		}
	}
	for _, to := range targets {
		if err := t.ns.do(func() error { return ping(ctx, to) }); err != nil {
			return err
		}
	}
	return nil
}

// policy returns the policy of the test's endpoint.
func (t *trial) policy(ctx context.Context) (endpointpolicies.EndpointPolicy, error) {
	rows, err := agentclient.Rows[endpointpolicies.EndpointPolicy](ctx, t.agent, "endpoint-policies")
	for _, row := range rows {
		if row.Attachment == t.container+":"+interfaceName {
			return row, err
		}
	}
	return endpointpolicies.EndpointPolicy{}, err
}

func (t *trial) check(ctx context.Context) error {
	return t.plugin.call(ctx, "CHECK", t.container, t.ns.path(), t.result.raw, nil)
}

func (t *trial) del(ctx context.Context) error {
	err := t.plugin.call(ctx, "DEL", t.container, t.ns.path(), t.result.raw, nil)
	t.added = err != nil
	return err
}

// verify checks that neither the link in the namespace nor the endpoint remains. DEL only takes the link down; the agent deletes it a moment later.
func (t *trial) verify(ctx context.Context) error {
	const pause, timeout = 20 * time.Millisecond, 10 * time.Second
	for deadline := time.Now().Add(timeout); ; time.Sleep(pause) {
		err := t.ns.onlyLoopback()
		if err == nil {
			break
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return err
		}
	}
	_, err := t.agent.Endpoint(ctx, "cni-attachment-id:"+t.container+":"+interfaceName)
	switch {
	case errors.Is(err, agentclient.ErrNotFound):
		return nil
	case err == nil:
		return errors.New("the endpoint still exists after DEL")
	}
	return err
}

// close removes the objects left by a failed step.
func (t *trial) close(ctx context.Context) (err error) {
	if t.ns == nil {
		return nil
	}
	if t.added {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = t.plugin.call(ctx, "DEL", t.container, t.ns.path(), nil, nil)
	}
	return errors.Join(err, t.ns.Close())
}
