package cni

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/agentclient"
	"github.com/waggle-net/waggle/pkg/datapath/rtnl"
	"github.com/waggle-net/waggle/pkg/podlink"
)

const checkRemedy = "the attachment is damaged: delete the pod, or send DEL and ADD"

// check compares the state of the agent and of the kernel with the result of the ADD.
func (p *plugin) check(ctx context.Context, conf *netConf, args *skel.CmdArgs) error {
	if failed := checkAttachment(args); failed != nil {
		return failed
	}
	want, failed := expectation(conf, args.IfName)
	if failed != nil {
		return failed
	}
	agent := agentclient.New(conf.SocketPath)
	config, failed := waitReady(ctx, agent)
	if failed != nil {
		return failed
	}
	want.deviceMTU = config.DeviceMTU
	if failed := checkEndpoint(ctx, agent, args); failed != nil {
		return failed
	}
	ns, failed := openNamespace(args.Netns)
	if failed != nil {
		return failed
	}
	defer ns.Close()
	if err := want.checkKernel(ns); err != nil {
		return failure(codeUnhealthy, err, checkRemedy)
	}
	return nil
}

// checkEndpoint queries the health of the endpoint from the agent.
func checkEndpoint(ctx context.Context, agent *agentclient.Client, args *skel.CmdArgs) *types.Error {
	health, err := agent.EndpointHealth(ctx, attachmentID(args.ContainerID, args.IfName))
	switch {
	case errors.Is(err, agentclient.ErrNotFound):
		return failure(codeUnhealthy, fmt.Errorf("the agent has no endpoint for container %s, interface %s",
			args.ContainerID, args.IfName), checkRemedy)
	case err != nil:
		return agentFailure(codeHealthUnknown, agent, err)
	case health.OverallHealth == models.EndpointHealthStatusFailure:
		return failure(codeUnhealthy, fmt.Errorf("the endpoint is not healthy: datapath %s, policy %s", health.BPF, health.Policy),
			"see waggle endpoint list and waggle status")
	}
	return nil
}

// expected holds the properties of one attachment from a result.
type expected struct {
	host, pod *types100.Interface
	deviceMTU int // bytes; the MTU that the agent currently assigns to links, which may differ from the MTU at the ADD
	ips       []*types100.IPConfig
	routes    []*types.Route
}

// expectation parses prevResult, which CHECK requires.
func expectation(conf *netConf, ifName string) (*expected, *types.Error) {
	bad := func(err error) (*expected, *types.Error) {
		return nil, failure(types.ErrInvalidNetworkConfig, fmt.Errorf("network configuration: prevResult: %w", err),
			"the runtime must pass the result of the ADD")
	}
	if conf.RawPrevResult == nil {
		return bad(errors.New("is missing"))
	}
	if err := version.ParsePrevResult(&conf.PluginConf); err != nil {
		return bad(err)
	}
	result, err := types100.NewResultFromResult(conf.PrevResult)
	if err != nil {
		return bad(err)
	}
	want := &expected{routes: result.Routes}
	for i, link := range result.Interfaces {
		switch {
		case link == nil:
			return bad(fmt.Errorf("interfaces[%d]: is null", i))
		case link.Sandbox == "" && podlink.IsHostName(link.Name):
			want.host = link
		case link.Sandbox != "" && link.Name == ifName:
			want.pod = link
			for _, ip := range result.IPs {
				if ip != nil && ip.Interface != nil && *ip.Interface == i {
					want.ips = append(want.ips, ip)
				}
			}
		}
	}
	if want.pod == nil || want.host == nil || len(want.ips) == 0 {
		return bad(fmt.Errorf("interfaces: has no interface %s with addresses, or no host end", ifName))
	}
	return want, nil
}

func (e *expected) checkKernel(ns *podNamespace) error {
	host, err := rtnl.Open()
	if err != nil {
		return err
	}
	defer host.Close()
	link, err := findHostLink(host, e.host.Name)
	if err != nil {
		return err
	}
	if link == nil || link.group != podlink.Group {
		return fmt.Errorf("host end %s: does not exist", e.host.Name)
	}
	if err := e.checkLink("host end "+e.host.Name, link.attrs, e.host); err != nil {
		return err
	}
	pod, err := ns.enter()
	if err != nil {
		return err
	}
	defer pod.Close()
	end, err := pod.LinkByName(e.pod.Name)
	if err != nil {
		return fmt.Errorf("interface %s in the pod: %w", e.pod.Name, err)
	}
	attrs := end.Attrs()
	if attrs.ParentIndex != link.index || link.peer != attrs.Index {
		return fmt.Errorf("interface %s in the pod: is not the other end of %s", e.pod.Name, e.host.Name)
	}
	if err := e.checkLink("interface "+e.pod.Name+" in the pod", attrs, e.pod); err != nil {
		return err
	}
	return errors.Join(e.checkAddresses(pod, end), e.checkRoutes(pod, end), e.checkNeighbors(pod, end))
}

// checkLink compares one end with the result. Results before version 1.1 have no MTU.
func (e *expected) checkLink(what string, have *netlink.LinkAttrs, want *types100.Interface) error {
	switch {
	case want.Mac != "" && have.HardwareAddr.String() != want.Mac:
		return fmt.Errorf("%s: has address %s, not %s", what, have.HardwareAddr, want.Mac)
	case want.Mtu != 0 && have.MTU != want.Mtu && have.MTU != e.deviceMTU:
		return fmt.Errorf("%s: has MTU %d, not %d", what, have.MTU, want.Mtu)
	case have.Flags&net.FlagUp == 0:
		return fmt.Errorf("%s: is down", what)
	}
	return nil
}
