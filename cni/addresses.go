package cni

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/waggle-net/waggle/api/v1/models"
)

// allocate requests an address of each family from the agent.
func (a *addition) allocate(ctx context.Context) *types.Error {
	answer, err := a.agent.AllocateIP(ctx, a.podArg.owner(a.args.ContainerID))
	if err != nil {
		return agentFailure(types.ErrTryAgainLater, a.agent, err)
	}
	for _, pair := range []struct{ ip, pool string }{
		{answer.Address.Ipv6, answer.Address.Ipv6PoolName}, {answer.Address.Ipv4, answer.Address.Ipv4PoolName}} {
		if pair.ip != "" {
			a.undo.addresses = append(a.undo.addresses, func(ctx context.Context) error { return a.agent.ReleaseIP(ctx, pair.ip, poolName(pair.pool)) })
		}
	}
	families, err := parseFamilies(answer)
	if err != nil {
		return failure(types.ErrDecodingFailure, fmt.Errorf("allocate addresses: the agent's answer: %w", err),
			"do the plugin and the agent have the same version?")
	}
	a.net = network{families: families, routeMTU: a.config.RouteMTU, hostMAC: a.spec.hostMAC}
	if a.conf.MTU != 0 { // the MTU of a route must not exceed the link's
		a.net.routeMTU = min(a.net.routeMTU, a.conf.MTU)
	}
	return nil
}

// poolName returns the pool name, or the default for calls that require a name.
func poolName(pool string) string {
	if pool == "" {
		return "default"
	}
	return pool
}

// parseFamilies parses the allocated addresses, IPv6 first.
func parseFamilies(answer *models.IPAMResponse) ([]family, error) {
	var families []family
	for _, in := range []struct {
		name, ip, pool, router string
		given                  models.IPAMAddressResponse
		bits                   int
	}{
		{"ipv6", answer.Address.Ipv6, answer.Address.Ipv6PoolName, answer.HostAddressing.Ipv6.IP, answer.Ipv6, 128},
		{"ipv4", answer.Address.Ipv4, answer.Address.Ipv4PoolName, answer.HostAddressing.Ipv4.IP, answer.Ipv4, 32},
	} {
		if in.ip == "" {
			continue
		}
		addr, err := parseAddr(in.ip, in.bits)
		if err != nil {
			return nil, fmt.Errorf("address.%s: %w", in.name, err)
		}
		gateway := in.router
		if gateway == "" {
			gateway = in.given.Gateway
		}
		router, err := parseAddr(gateway, in.bits)
		if err != nil {
			return nil, fmt.Errorf("host-addressing.%s.ip: %w", in.name, err)
		}
		families = append(families, family{addr: addr, gateway: router, pool: in.pool, uuid: in.given.ExpirationUUID})
	}
	if len(families) == 0 {
		return nil, errors.New("address: has neither IPv4 nor IPv6")
	}
	return families, nil
}

func parseAddr(s string, bits int) (netip.Addr, error) {
	addr, err := netip.ParseAddr(s)
	if err != nil {
		return addr, err
	}
	if addr.BitLen() != bits || addr.Is4In6() || addr.Zone() != "" {
		return addr, fmt.Errorf("%s: is of the wrong family", addr)
	}
	return addr, nil
}
