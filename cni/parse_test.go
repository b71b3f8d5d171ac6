package cni

import (
	"context"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/waggle-net/waggle/api/v1/models"
)

func TestParseArgs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args string
		want podArgs
		fail string
	}{
		{args: ""},
		{args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web-0;K8S_POD_UID=1-2;X=y", want: podArgs{"ns", "web-0", "1-2"}},
		{args: "X=y;IgnoreUnknown=true"},
		{args: "K8S_POD_NAME=web", want: podArgs{Name: "web"}},
		{args: "X=y", fail: `"X"`},
		{args: "X=y;IgnoreUnknown=0", fail: `"X"`},
		{args: "K8S_POD_NAME", fail: "KEY=value"},
		{args: "K8S_POD_NAME=a:b", fail: "K8S_POD_NAME"},
		{args: "K8S_POD_NAMESPACE=" + strings.Repeat("a", 64), fail: "K8S_POD_NAMESPACE"},
		{args: "IgnoreUnknown=perhaps", fail: "IgnoreUnknown"},
		{args: strings.Repeat(";", maxArgs+1), fail: "CNI_ARGS"},
	} {
		got, err := parseArgs(c.args)
		switch {
		case c.fail == "" && (err != nil || got != c.want):
			t.Errorf("%.60q: %+v, %v; want %+v", c.args, got, err, c.want)
		case c.fail != "" && (err == nil || !strings.Contains(err.Error(), c.fail)):
			t.Errorf("%.60q: %v does not name %s", c.args, err, c.fail)
		}
	}
}

func TestOwner_FallsBackToTheContainer(t *testing.T) {
	t.Parallel()
	if got := (podArgs{Namespace: "ns", Name: "web"}).owner("c1"); got != "ns/web" {
		t.Error(got)
	}
	if got := (podArgs{Name: "web"}).owner("c1"); got != "c1" {
		t.Error(got)
	}
}

func TestParseConf_DefaultsFollowTheStateDirectory(t *testing.T) {
	t.Parallel()
	c, failed := parseConf([]byte(`{"cniVersion":"1.0.0","name":"waggle"}`))
	if failed != nil || c.SocketPath != "/var/run/waggle/waggle.sock" || c.queueDir() != "/var/run/waggle/deleteQueue" {
		t.Errorf("%+v, %v", c, failed)
	}
	c, failed = parseConf([]byte(`{"name":"waggle","state-dir":"/run/w"}`))
	if failed != nil || c.SocketPath != "/run/w/waggle.sock" || c.endpointsDir() != "/run/w/endpoints" {
		t.Errorf("%+v, %v", c, failed)
	}
}

func TestLastField(t *testing.T) {
	t.Parallel()
	for document, want := range map[string]string{
		``: "", `[1,2`: "", `{"a":1,"b":`: "b", `{"a":"b","c":{"d":"e"},"f":["g"`: "f", `{"a":["x",{"y":1}],`: "y", `{"a" 1`: "a",
	} {
		if got := lastField([]byte(document)); got != want {
			t.Errorf("%s: %q, want %q", document, got, want)
		}
	}
}

func TestParseFamilies_RejectsInvalidAddresses(t *testing.T) {
	t.Parallel()
	good := models.IPAMResponse{Address: models.AddressPair{Ipv4: "10.0.0.2", Ipv6: "fd00::2"},
		HostAddressing: models.NodeAddressing{Ipv4: models.NodeAddressingElement{IP: "10.0.0.1"}, Ipv6: models.NodeAddressingElement{IP: "fd00::1"}}}
	if got, err := parseFamilies(&good); err != nil || len(got) != 2 || !got[0].addr.Is6() || got[1].gateway != mustAddr("10.0.0.1") {
		t.Errorf("%+v, %v", got, err)
	}
	for field, change := range map[string]func(*models.IPAMResponse){
		"address.ipv4":            func(r *models.IPAMResponse) { r.Address.Ipv4 = "fd00::3" },
		"address.ipv6":            func(r *models.IPAMResponse) { r.Address.Ipv6 = "::ffff:10.0.0.2" },
		"host-addressing.ipv4.ip": func(r *models.IPAMResponse) { r.HostAddressing.Ipv4.IP = "" },
		"host-addressing.ipv6.ip": func(r *models.IPAMResponse) { r.HostAddressing.Ipv6.IP = "fe80::1%eth0" },
		"address":                 func(r *models.IPAMResponse) { r.Address = models.AddressPair{} },
	} {
		bad := good
		change(&bad)
		if _, err := parseFamilies(&bad); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: error %v does not name it", field, err)
		}
	}
}

func TestRandomMAC_IsUnicastAndLocal(t *testing.T) {
	t.Parallel()
	for range 1000 {
		if a := randomMAC(); a[0]&0x03 != 0x02 {
			t.Fatalf("%s", a)
		}
	}
}

// An address is released only when nothing uses it any longer, regardless of the order in which steps ended.
func TestUndo_ReleasesAddressesLastAndContinuesAfterErrors(t *testing.T) {
	t.Parallel()
	var order []string
	broken := errors.New("broken")
	does := func(name string) func(context.Context) error {
		return func(context.Context) error {
			order = append(order, name)
			if name == "link" {
				return broken
			}
			return nil
		}
	}
	u := undo{addresses: []func(context.Context) error{does("IPv6"), does("IPv4")}}
	u.link = does("link")
	if err := u.run(); !errors.Is(err, broken) || strings.Join(order, " ") != "link IPv6 IPv4" {
		t.Errorf("order %v, %v", order, err)
	}
	order, u.endpoint = nil, does("endpoint")
	if err := u.run(); !errors.Is(err, broken) || strings.Join(order, " ") != "endpoint link IPv6 IPv4" {
		t.Errorf("order %v, %v", order, err)
	}
}

func FuzzParseConf(f *testing.F) {
	f.Add([]byte(`{"cniVersion":"1.1.0","name":"waggle","type":"waggle-cni","socket-path":"/run/x"}`))
	f.Add([]byte(`{"name":"w","prevResult":{"interfaces":[{"name":"eth0","sandbox":"/x"}]},"cni.dev/valid-attachments":[]}`))
	f.Add([]byte(`{"name":"w","a":[{"b":`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, failed := parseConf(data)
		if failed != nil {
			if failed.Code != 6 && failed.Code != 7 {
				t.Errorf("code %d", failed.Code)
			}
			return
		}
		if c.Name == "" || c.SocketPath[0] != '/' || c.StateDir[0] != '/' {
			t.Errorf("accepted %+v", c)
		}
		_, _ = expectation(c, "eth0") // any result that a runtime passes must not panic
		hasField(data, "cni.dev/valid-attachments")
	})
}

func FuzzParseArgs(f *testing.F) {
	f.Add("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;K8S_POD_UID=u")
	f.Add(";;=;K8S_POD_NAME=\x1b[2J")
	f.Fuzz(func(t *testing.T, args string) {
		pod, err := parseArgs(args)
		if err != nil {
			return
		}
		for _, v := range []string{pod.Namespace, pod.Name, pod.UID} {
			if strings.ContainsAny(v, "/:;= \x1b\x00\n") || len(v) > maxPodName || !utf8.ValidString(v) {
				t.Errorf("accepted %q", v)
			}
		}
	})
}

func FuzzCheckAttachment(f *testing.F) {
	f.Add("c1", "eth0")
	f.Add("../x", "eth\x1b")
	f.Fuzz(func(t *testing.T, containerID, ifName string) {
		if checkAttachment(&skel.CmdArgs{ContainerID: containerID, IfName: ifName}) != nil {
			return
		}
		if len(containerID) > maxContainerID || strings.ContainsAny(ifName, "\x00\x1b\n \t") {
			t.Errorf("accepted %q %q", containerID, ifName)
		}
	})
}
