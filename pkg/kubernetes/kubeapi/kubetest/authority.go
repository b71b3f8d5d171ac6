package kubetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"testing"
	"time"
)

// Authority signs server certificates.
type Authority struct {
	key         *ecdsa.PrivateKey
	certificate *x509.Certificate
	pem         []byte
}

// NewAuthority creates a CA that is trusted only by explicit configuration.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{certificate: &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubetest"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}}
	a.key = newKey(t)
	der := a.sign(t, a.certificate, a.key)
	var err error
	if a.certificate, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

// PEM returns the CA's certificate.
func (a *Authority) PEM() []byte { return a.pem }

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *Authority) sign(t testing.TB, certificate *x509.Certificate, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, certificate, a.certificate, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// WithTLS makes a server use TLS, and so HTTP/2, with a certificate of a for addresses, or for 127.0.0.1.
func WithTLS(a *Authority, addresses ...string) Option {
	return func(t testing.TB, s *Server) {
		t.Helper()
		if len(addresses) == 0 {
			addresses = []string{"127.0.0.1"}
		}
		certificate := &x509.Certificate{SerialNumber: big.NewInt(2), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
		for _, address := range addresses {
			certificate.IPAddresses = append(certificate.IPAddresses, net.ParseIP(address))
		}
		key := newKey(t)
		s.ca = a.pem
		s.tls = &tls.Config{MinVersion: tls.VersionTLS12,
			Certificates: []tls.Certificate{{Certificate: [][]byte{a.sign(t, certificate, key)}, PrivateKey: key}}}
	}
}
