package kubeapi_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
)

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v\n\tdoes not say %q", err, part)
		}
	}
}

func TestTokenIsReadAgain(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t, kubetest.WithTLS(kubetest.NewAuthority(t)))
	s.Put(node("one"))
	s.RequireToken("first")
	token := filepath.Join(t.TempDir(), "token")
	write(t, token, []byte("first"))
	config := s.Config()
	config.BearerToken, config.BearerTokenFile = "", token
	client := newClient(t, config)
	if err := get(t, client, "one"); err != nil {
		t.Fatal(err)
	}
	write(t, token, []byte("second"))
	s.RequireToken("second")
	err := get(t, client, "one")
	if !apierrors.IsUnauthorized(err) {
		t.Fatalf("with the old token: %v", err)
	}
	wantError(t, err, "get nodes one at "+s.URL(), "the token has expired or belongs to another cluster")
	if row := rows(client)[s.URL()]; row.Reachable != apiservers.Yes || !strings.Contains(row.Error, "401") {
		t.Errorf("the server that refuses us is %+v", row)
	}
	if err := get(t, client, "one"); err != nil {
		t.Errorf("after the refusal the token was not read again: %v", err)
	}
	if row := rows(client)[s.URL()]; row.Error != "" {
		t.Errorf("the server that accepts us again is %+v", row)
	}
}

func TestCertificates(t *testing.T) {
	t.Parallel()
	authority := kubetest.NewAuthority(t)
	s := kubetest.New(t, kubetest.WithTLS(authority))
	s.Put(node("one"))
	ca := filepath.Join(t.TempDir(), "ca.crt")
	write(t, ca, kubetest.NewAuthority(t).PEM())
	config := s.Config()
	config.CAData, config.CAFile = nil, ca
	client := newClient(t, config)
	wantError(t, get(t, client, "one"), "get nodes one: the API server does not answer: "+s.URL(), "certificate", "check the CA")
	if row := rows(client)[s.URL()]; row.Reachable != apiservers.No || !strings.Contains(row.Error, "check the CA") {
		t.Errorf("the row is %+v", row)
	}
	write(t, ca, authority.PEM())
	_ = get(t, client, "one") // loads the new CA
	if err := get(t, client, "one"); err != nil {
		t.Errorf("with the CA that the file holds now: %v", err)
	}

	other := kubetest.New(t, kubetest.WithTLS(authority, "192.0.2.1"))
	wantError(t, get(t, newClient(t, other.Config()), "one"), "192.0.2.1", "use an address that the certificate names")
}

func TestWrongScheme(t *testing.T) {
	t.Parallel()
	secure := kubetest.New(t, kubetest.WithTLS(kubetest.NewAuthority(t)))
	wantError(t, get(t, newClient(t, &rest.Config{}, secure.Address()), "one"), "prefix the address with https://")
	plain := kubetest.New(t)
	wantError(t, get(t, newClient(t, &rest.Config{}, "https://"+plain.Address()), "one"), "write http:// if this server does not speak TLS")
}

func TestBareAddress(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	s.Put(node("one"))
	if err := get(t, newClient(t, &rest.Config{}, s.Address()), "one"); err != nil {
		t.Error(err)
	}
}

func TestErrors_NameRemedy(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	client := s.Client(t)
	s.Deny("list", kubeapi.CiliumNodes)
	s.Deny("watch", kubeapi.Nodes)
	err := client.List(t.Context(), kubeapi.CiliumNodes, "", metav1.ListOptions{}, &ciliumv2.CiliumNodeList{})
	wantError(t, err, "list ciliumnodes.cilium.io at "+s.URL(), "lacks the verb list on ciliumnodes.cilium.io", "waggle install")
	if !apierrors.IsForbidden(err) {
		t.Error("the cause is hidden")
	}
	_, err = client.Watch(t.Context(), kubeapi.Nodes, "", metav1.ListOptions{})
	wantError(t, err, "watch nodes at "+s.URL(), "lacks the verb watch on nodes")
	s.Fault(func(*http.Request) (int, string) { return http.StatusNotFound, "" })
	err = client.List(t.Context(), kubeapi.CiliumIdentities, "", metav1.ListOptions{}, &ciliumv2.CiliumIdentityList{})
	wantError(t, err, "CustomResourceDefinition is missing")
	err = client.Get(t.Context(), kubeapi.CiliumNodes, "", "one", &ciliumv2.CiliumNode{})
	if err == nil || strings.Contains(err.Error(), "CustomResourceDefinition") {
		t.Errorf("a missing object: %v", err)
	}
}

func TestNew_RejectsUnusableConfig(t *testing.T) {
	t.Parallel()
	for want, config := range map[string]*rest.Config{
		"no address":                       {},
		"scheme is http or https":          {Host: "unix:///run/x"},
		"read the CA of the API server":    {Host: "https://a", TLSClientConfig: rest.TLSClientConfig{CAFile: "/does/not/exist"}},
		"use a token or a client":          {Host: "https://a", ExecProvider: &clientcmdapi.ExecConfig{Command: "x"}},
		"unable to load root certificates": {Host: "https://a", TLSClientConfig: rest.TLSClientConfig{CAData: []byte("x")}},
	} {
		_, err := kubeapi.New(config, kubeapi.DefaultConnection)
		wantError(t, err, "prepare the connection to the API server", want)
	}
}

func TestRateLimit_IsSharedAndSparesWatches(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	config := s.Config()
	config.QPS, config.Burst = 0.01, 2
	client := newClient(t, config)
	var nodes corev1.NodeList
	var identities ciliumv2.CiliumIdentityList
	if err := client.List(t.Context(), kubeapi.Nodes, "", metav1.ListOptions{}, &nodes); err != nil {
		t.Fatal(err)
	}
	if err := client.List(t.Context(), kubeapi.CiliumIdentities, "", metav1.ListOptions{}, &identities); err != nil {
		t.Fatal(err)
	}
	w, err := client.Watch(t.Context(), kubeapi.Nodes, "", metav1.ListOptions{})
	if err != nil {
		t.Fatalf("a watch was held back: %v", err)
	}
	w.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	body, err := client.Stream(ctx, kubeapi.CiliumEndpoints, "", metav1.ListOptions{})
	if err != nil {
		t.Fatalf("a stream was held back: %v", err)
	}
	_ = body.Close()
	wantError(t, client.List(ctx, kubeapi.Leases, "", metav1.ListOptions{}, nil), "rate limiter")
	if n := len(s.Requests()); n != 4 {
		t.Errorf("%d requests were sent, want 4", n)
	}
}

func TestUserAgentAndDeadline(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	config := s.Config()
	config.UserAgent = "waggle-agent/1"
	client := newClient(t, config)
	_ = get(t, client, "one")
	w, err := client.Watch(t.Context(), kubeapi.Nodes, "", metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.Stop()
	requests := s.Requests()
	if requests[0].UserAgent != "waggle-agent/1" || !strings.Contains(requests[0].Query, "timeout=30s") {
		t.Errorf("the request was %+v", requests[0])
	}
	if strings.Contains(requests[1].Query, "timeout") {
		t.Errorf("the watch was %+v", requests[1])
	}
}
