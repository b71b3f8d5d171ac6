package cni

import (
	"context"
	"fmt"
	"net"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
)

// Positions in the result's list of interfaces.
const (
	hostInterface = 0
	podInterface  = 1
)

// printResult writes the result to stdout in the version of the configuration.
func (a *addition) printResult(context.Context) *types.Error {
	result, err := a.result().GetAsVersion(a.conf.CNIVersion)
	if err == nil {
		err = result.PrintTo(a.out)
	}
	if err != nil {
		return failure(types.ErrIOFailure, fmt.Errorf("print the result: %w", err), "")
	}
	return nil
}

func (a *addition) result() *types100.Result {
	r := &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{
			hostInterface: {Name: a.link.name, Mac: a.spec.hostMAC.String(), Mtu: a.spec.mtu},
			podInterface:  {Name: a.spec.podName, Mac: a.spec.podMAC.String(), Mtu: a.spec.mtu, Sandbox: a.ns.path},
		},
	}
	for _, f := range a.net.families {
		r.IPs = append(r.IPs, &types100.IPConfig{
			Interface: types100.Int(podInterface),
			Address:   *netlink.NewIPNet(f.addr.AsSlice()),
			Gateway:   net.IP(f.gateway.AsSlice()),
		})
		for _, route := range a.net.routes(f, a.link.peer) {
			out := &types.Route{Dst: *route.Dst, MTU: route.MTU}
			if route.Gw != nil {
				out.GW = route.Gw
			}
			r.Routes = append(r.Routes, out)
		}
	}
	return r
}
