package kube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Tokens of components and users. The API server reads the tokens from a file. Clusters are reachable only from their own namespaces.
const (
	AdminToken     = "admin" // of a member of system:masters
	tokensTemplate = "admin,admin,admin,system:masters\n" +
		"controllers,system:kube-controller-manager,controllers,system:masters\n" +
		"scheduler,system:kube-scheduler,scheduler\n" +
		proxyToken + ",system:kube-proxy,kube-proxy\n"
)

func nodeToken(node string) string { return "kubelet-" + node }

// writeCredentials writes the certificate authority, the API server's certificate, the signing key of ServiceAccount tokens and the token file.
func (c *Cluster) writeCredentials() error {
	ca, err := newPair("waggle-kube", nil, nil)
	if err != nil {
		return err
	}
	server, err := newPair("kube-apiserver", &ca, []string{apiIPv4, apiIPv6, "127.0.0.1", "::1", "10.96.0.1"}, apiNames...)
	if err != nil {
		return err
	}
	accounts, err := newPair("service-accounts", nil, nil)
	if err != nil {
		return err
	}
	tokens := tokensTemplate
	for i := range maxNodes {
		name := nodeName(i)
		tokens += fmt.Sprintf("%s,system:node:%s,%s,system:nodes\n", nodeToken(name), name, name)
	}
	c.caPEM = ca.certPEM
	for name, content := range map[string][]byte{"ca.crt": ca.certPEM, "apiserver.crt": server.certPEM, "apiserver.key": server.keyPEM,
		"accounts.key": accounts.keyPEM, "tokens.csv": []byte(tokens)} {
		if err := os.WriteFile(c.path(name), content, 0o600); err != nil {
			return err
		}
	}
	for user, token := range map[string]string{"controllers": "controllers", "scheduler": "scheduler"} {
		if err := c.WriteKubeconfig(c.path(user+".kubeconfig"), token); err != nil {
			return err
		}
	}
	return c.writeKubeconfig(c.adminKubeconfig(), c.URL, AdminToken, c.Namespace)
}

// WriteKubeconfig writes a kubeconfig for a token. The kubeconfig works in the namespaces of the control plane and of nodes.
func (c *Cluster) WriteKubeconfig(path, token string) error {
	return c.writeKubeconfig(path, c.URL, token, "default")
}

func (c *Cluster) writeKubeconfig(path, url, token, namespace string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Config", "current-context": "waggle",
 "clusters": [{"name": "waggle", "cluster": {"server": %q, "certificate-authority-data": %q}}],
 "users": [{"name": "user", "user": {"token": %q}}],
 "contexts": [{"name": "waggle", "context": {"cluster": "waggle", "user": "user", "namespace": %q}}]}
`, url, base64Text(c.caPEM), token, namespace), 0o600)
}

// pair is a certificate with its private key.
type pair struct {
	cert            *x509.Certificate
	key             *ecdsa.PrivateKey
	certPEM, keyPEM []byte
}

// apiNames are the names of the API server.
var apiNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}

// ServingCertificate creates a self-signed certificate for a DNS name. It returns the certificate and its private key in PEM.
func ServingCertificate(name string) (certificate, key []byte, err error) {
	p, err := newPair(name, nil, nil, name)
	return p.certPEM, p.keyPEM, err
}

// newPair creates a certificate for addresses and DNS names, signed by issuer. Without an issuer the certificate is self-signed and is a CA.
func newPair(name string, issuer *pair, addresses []string, names ...string) (p pair, err error) {
	if p.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return p, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(365 * 24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		IsCA:         issuer == nil, BasicConstraintsValid: true,
		DNSNames: names,
	}
	for _, a := range addresses {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(a))
	}
	parent, key := template, p.key
	if issuer != nil {
		parent, key = issuer.cert, issuer.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &p.key.PublicKey, key)
	if err != nil {
		return p, fmt.Errorf("make the certificate of %s: %w", name, err)
	}
	if p.cert, err = x509.ParseCertificate(der); err != nil {
		return p, err
	}
	keyDER, err := x509.MarshalECPrivateKey(p.key)
	if err != nil {
		return p, err
	}
	p.certPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	p.keyPEM = pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
	return p, nil
}
