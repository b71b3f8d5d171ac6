package apiserver

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/masquerade"
)

// kubeProxy returns which kinds of Services are served, and on which devices.
func (a *api) kubeProxy(txn statedb.ReadTxn) models.KubeProxyReplacement {
	s := models.KubeProxyReplacement{Mode: models.KubeProxyReplacementModeFalse}
	for d := range a.Links.List(txn, devices.BySelected(true)) {
		s.Devices = append(s.Devices, d.Name)
	}
	slices.Sort(s.Devices)
	s.DeviceList = a.deviceList(txn, s.Devices)
	s.DirectRoutingDevice = a.directRoutingDevice(txn, s.Devices)
	if !a.Settings.KubeProxyReplacement {
		return s
	}
	s.Mode = models.KubeProxyReplacementModeTrue
	on := models.Feature{Enabled: true}
	s.Features = models.KubeProxyFeatures{
		SocketLB:              models.Feature{Enabled: a.flag("bpf-lb-sock")},
		BPFSocketLBHostnsOnly: a.flag("bpf-lb-sock-hostns-only"),
		HostPort:              models.Feature{Enabled: a.flag("enable-host-port")},
		ExternalIPs:           models.Feature{Enabled: a.flag("enable-external-ips")},
		SessionAffinity:       on, // no flag disables these
		GracefulTermination:   on,
		NodePort: models.NodePortFeature{
			Enabled: true, Mode: models.NodePortFeatureModeSNAT, Algorithm: models.NodePortFeatureAlgorithmRandom,
			Acceleration: models.NodePortFeatureAccelerationNone,
			PortMin:      int64(a.Settings.NodePortMin), PortMax: int64(a.Settings.NodePortMax),
		},
	}
	if a.Settings.Maglev {
		s.Features.NodePort.Algorithm = models.NodePortFeatureAlgorithmMaglev
		s.Features.NodePort.LutSize = int64(a.Settings.MaglevTableSize)
	}
	return s
}

// flag returns a boolean flag; false if no cell has it.
func (a *api) flag(name string) bool {
	on, _ := a.Flags[name].(bool)
	return on
}

// deviceList returns the devices with the addresses that serve NodePort services.
func (a *api) deviceList(txn statedb.ReadTxn, names []string) []models.KubeProxyDevice {
	addrs := map[string][]netip.Addr{}
	for row := range a.NodeAddresses.All(txn) {
		if row.NodePort {
			addrs[row.Device] = append(addrs[row.Device], row.Addr)
		}
	}
	var list []models.KubeProxyDevice
	for _, name := range names {
		d := models.KubeProxyDevice{Name: name}
		slices.SortFunc(addrs[name], netip.Addr.Compare)
		for _, addr := range addrs[name] {
			d.IP = append(d.IP, addr.String())
		}
		list = append(list, d)
	}
	return list
}

// directRoutingDevice returns the device that --direct-routing-device names, else the device of the node's address (IPv4 first), else the only one.
func (a *api) directRoutingDevice(txn statedb.ReadTxn, names []string) string {
	if wanted, _ := a.Flags["direct-routing-device"].(string); wanted != "" {
		prefix, open := strings.CutSuffix(wanted, "+")
		for _, name := range names {
			if name == wanted || open && strings.HasPrefix(name, prefix) {
				return name
			}
		}
		return ""
	}
	device := ""
	for row := range a.NodeAddresses.All(txn) {
		if row.Primary && slices.Contains(names, row.Device) && (device == "" || row.Addr.Is4()) {
			device = row.Device
		}
	}
	if device == "" && len(names) == 1 {
		device = names[0]
	}
	return device
}

// masquerading returns whether traffic of pods leaves the cluster with the node's addresses.
func (a *api) masquerading(txn statedb.ReadTxn) models.Masquerading {
	ipv4, ipv6 := a.Settings.MasqueradeIPv4, a.Settings.MasqueradeIPv6
	if !ipv4 && !ipv6 {
		return models.Masquerading{}
	}
	s := models.Masquerading{Enabled: true, Mode: models.MasqueradingModeBPF,
		EnabledProtocols: models.MasqueradingProtocols{Ipv4: ipv4, Ipv6: ipv6}, IPMasqAgent: a.flag("enable-ip-masq-agent")}
	for _, reason := range []string{masquerade.OwnPods, masquerade.NativeRouting} { // the last reason takes precedence
		for e := range a.Exclusions.All(txn) {
			switch {
			case e.Reason != reason:
			case e.Prefix.Addr().Is4() && ipv4:
				s.SnatExclusionCIDRV4 = e.Prefix.String()
			case e.Prefix.Addr().Is6() && ipv6:
				s.SnatExclusionCIDRV6 = e.Prefix.String()
			}
		}
	}
	return s
}
