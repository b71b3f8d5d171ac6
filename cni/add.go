package cni

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/agentclient"
	"github.com/waggle-net/waggle/pkg/datapath/rtnl"
)

// addition is the state of a running ADD.
type addition struct {
	*plugin
	args   *skel.CmdArgs
	conf   *netConf
	podArg podArgs
	agent  *agentclient.Client
	undo   undo

	host *rtnl.Handle
	ns   *podNamespace
	pod  *podHandle

	config *agentclient.PodConfig
	spec   linkSpec
	link   *hostLink
	net    network
}

// add attaches a pod. After a failure it undoes all changes.
func (p *plugin) add(ctx context.Context, conf *netConf, args *skel.CmdArgs) error {
	if conf.RawPrevResult != nil {
		return failure(types.ErrInvalidNetworkConfig,
			errors.New("network configuration: prevResult: this plugin makes the link itself and must be the first of its list"),
			"put waggle-cni first in the conflist")
	}
	if failed := checkAttachment(args); failed != nil {
		return failed
	}
	pod, err := parseArgs(args.Args)
	if err != nil {
		return failure(types.ErrInvalidEnvironmentVariables, err, "")
	}
	a := &addition{plugin: p, args: args, conf: conf, podArg: pod, agent: agentclient.New(conf.SocketPath)}
	if failed := a.run(ctx); failed != nil {
		if err := a.undo.run(); err != nil {
			failed.Details += fmt.Sprintf(" (and the completed steps could not be undone: %v; DEL undoes them)", err)
		}
		return failed
	}
	return nil
}

// run executes the steps in order. After the checks, a failure in the kernel causes only an undo.
func (a *addition) run(ctx context.Context) *types.Error {
	var failed *types.Error
	if a.ns, failed = openNamespace(a.args.Netns); failed != nil {
		return failed
	}
	defer a.ns.Close()
	for _, steps := range [][]step{
		{{"wait for the agent", a.awaitAgent}, {"check for names in use", a.checkFree}},
		{{"allocate addresses", a.allocate}, {"create the link", a.createLink}},
		{{"create the endpoint", a.createEndpoint}, {"configure the pod", a.configurePod}},
		{{"wait for the kernel", a.awaitUsable}},
		{{"print the result", a.printResult}},
	} {
		if ctx.Err() != nil {
			return failure(types.ErrTryAgainLater, fmt.Errorf("ADD was interrupted: %w", context.Cause(ctx)), "")
		}
		if failed := a.atOnce(ctx, steps); failed != nil {
			return failed
		}
	}
	return nil
}

// step is a part of ADD.
type step struct {
	name string
	run  func(context.Context) *types.Error
}

// atOnce runs independent steps concurrently and returns when all have ended. It returns the first failure in the order of steps. The plugin does its own
// part while the agent works.
func (a *addition) atOnce(ctx context.Context, steps []step) *types.Error {
	failures := make([]*types.Error, len(steps))
	do := func(i int) {
		begin := time.Now()
		if failures[i] = steps[i].run(ctx); failures[i] == nil {
			a.log.Debug("Step completed", "step", steps[i].name, "duration", time.Since(begin))
		}
	}
	var others sync.WaitGroup
	for i := range steps[1:] {
		others.Go(func() { do(i + 1) })
	}
	do(0)
	others.Wait()
	for _, failed := range failures {
		if failed != nil {
			return failed
		}
	}
	return nil
}

func (a *addition) awaitAgent(ctx context.Context) (failed *types.Error) {
	a.config, failed = waitReady(ctx, a.agent)
	return failed
}

// checkFree rejects an ADD that cannot succeed before anything is allocated.
func (a *addition) checkFree(context.Context) *types.Error {
	var err error
	if a.host, err = rtnl.Open(); err != nil {
		return failure(codeKernel, err, "")
	}
	if a.pod, err = a.ns.enter(); err != nil {
		return failure(codeKernel, err, "")
	}
	name, err := freeHostName(a.host, a.args.ContainerID, a.args.IfName)
	if err != nil {
		return a.linkFailure(err)
	}
	if _, err := a.pod.LinkByName(a.args.IfName); err == nil {
		return a.linkFailure(errPodLinkTaken)
	} else if !rtnl.IsGone(err) {
		return failure(codeKernel, fmt.Errorf("look up %s in the pod: %w", a.args.IfName, err), "")
	}
	a.spec = linkSpec{hostName: name, podName: a.args.IfName, mtu: a.conf.MTU, hostMAC: randomMAC(), podMAC: randomMAC(), pod: a.ns}
	return nil
}

// linkFailure maps errors of link names to CNI error codes.
func (a *addition) linkFailure(err error) *types.Error {
	switch {
	case errors.Is(err, errAttached):
		return failure(types.ErrInvalidEnvironmentVariables,
			fmt.Errorf("CNI_CONTAINERID %s, CNI_IFNAME %s: %w", a.args.ContainerID, a.args.IfName, err),
			"send DEL for this attachment before another ADD")
	case errors.Is(err, errPodLinkTaken):
		return failure(types.ErrInvalidEnvironmentVariables, fmt.Errorf("CNI_IFNAME %s: %w", a.args.IfName, err),
			"choose another name, or send DEL for the attachment that uses it")
	default:
		return failure(codeKernel, err, "")
	}
}

// createLink creates both ends of the link in one netlink message.
func (a *addition) createLink(context.Context) *types.Error {
	if a.spec.mtu == 0 {
		a.spec.mtu = a.config.DeviceMTU
	}
	if a.config.Addressing.Ipv6.IP != "" && !a.pod.ipv6 {
		if err := a.ns.do(permitIPv6); err != nil {
			return failure(codeKernel, err, "")
		}
	}
	if err := a.links.create(a.host, a.spec); err != nil {
		err = fmt.Errorf("create link %s with its peer %s in the pod: %w", a.spec.hostName, a.spec.podName, err)
		remedy := "is CAP_NET_ADMIN missing, or the veth module?"
		if errors.Is(err, unix.EEXIST) { // created concurrently since checkFree
			return failure(types.ErrTryAgainLater, err, "another ADD is under way for the same attachment or interface name")
		}
		return failure(codeKernel, err, remedy)
	}
	a.undo.link = func(context.Context) error { return deleteLink(a.host, a.spec.hostName) }
	var err error
	if a.link, err = findHostLink(a.host, a.spec.hostName); err == nil && a.link == nil {
		err = fmt.Errorf("link %s was deleted", a.spec.hostName)
	}
	if err != nil {
		return failure(codeKernel, err, "is another program deleting links?")
	}
	if err := relaxReversePath(a.spec.hostName); err != nil {
		return failure(codeKernel, err, "is /proc/sys writable?")
	}
	return nil
}

func (a *addition) configurePod(context.Context) *types.Error {
	if err := a.pod.configure(a.spec.podName, a.link.peer, a.net); err != nil {
		return failure(codeKernel, err, "")
	}
	return nil
}

// createEndpoint creates the endpoint. It returns when the agent has written the endpoint's entries to the kernel.
func (a *addition) createEndpoint(ctx context.Context) *types.Error {
	req := models.EndpointChangeRequest{
		ContainerID:            a.args.ContainerID,
		ContainerInterfaceName: a.args.IfName,
		InterfaceName:          a.link.name,
		InterfaceIndex:         int64(a.link.index),
		MAC:                    a.spec.podMAC.String(),
		HostMAC:                a.spec.hostMAC.String(),
		K8SNamespace:           a.podArg.Namespace,
		K8SPodName:             a.podArg.Name,
		K8SUid:                 a.podArg.UID,
		State:                  models.EndpointStateWaitingForIdentity,
		SyncBuildEndpoint:      true,
		NetnsCookie:            strconv.FormatUint(a.pod.cookie, 10),
		Properties: map[string]any{
			"netns-path":  a.ns.path,
			"netns-inode": strconv.FormatUint(a.ns.inode, 10),
		},
	}
	for _, f := range a.net.families {
		if f.addr.Is6() {
			req.Addressing.Ipv6, req.Addressing.Ipv6PoolName, req.Addressing.Ipv6ExpirationUUID = f.addr.String(), f.pool, f.uuid
		} else {
			req.Addressing.Ipv4, req.Addressing.Ipv4PoolName, req.Addressing.Ipv4ExpirationUUID = f.addr.String(), f.pool, f.uuid
		}
	}
	forget := func(ctx context.Context) error {
		return deleteEndpoint(ctx, a.agent, a.args.ContainerID, a.args.IfName, deleteTimeout)
	}
	err := a.agent.CreateEndpoint(ctx, req)
	// An agent that rejects the request has undone its own changes. An endpoint with this id would belong to another attachment.
	if err == nil || agentclient.Status(err) == 0 {
		a.undo.endpoint = forget
	}
	if err == nil {
		return nil
	}
	return agentFailure(codeRejected, a.agent, err)
}

// deleteLink deletes a link by name. A missing link is no error.
func deleteLink(host *rtnl.Handle, name string) error {
	link, err := findHostLink(host, name)
	if err != nil || link == nil {
		return err
	}
	err = host.LinkDel(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: name, Index: link.index}})
	if err != nil && !rtnl.IsGone(err) {
		return fmt.Errorf("delete link %s: %w", name, err)
	}
	return nil
}
