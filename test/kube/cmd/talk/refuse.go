package main

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"time"
)

// review holds the fields of an AdmissionReview that refuse reads and writes.
type review struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Request    *request `json:"request,omitempty"`
	Response   *verdict `json:"response,omitempty"`
}

type request struct {
	UID string `json:"uid"`
}

type verdict struct {
	UID     string `json:"uid"`
	Allowed bool   `json:"allowed"`
	Status  struct {
		Message string `json:"message"`
	} `json:"status"`
}

// refuse serves a validating webhook that denies all requests. Its message has the client address that the server sees. The certificate is a chain and a
// private key, both in PEM.
func refuse(certificate, port string) error {
	pair, err := tls.X509KeyPair([]byte(certificate), []byte(certificate))
	if err != nil {
		return fmt.Errorf("read the certificate: %w", err)
	}
	server := http.Server{Addr: ":" + port, TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}}, ReadHeaderTimeout: answerWithin,
		IdleTimeout: time.Minute, Handler: http.HandlerFunc(deny)}
	return server.ListenAndServeTLS("", "")
}

func deny(w http.ResponseWriter, r *http.Request) {
	var asked review
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || asked.Request == nil {
		http.Error(w, fmt.Sprintf("no AdmissionReview: %v", err), http.StatusBadRequest)
		return
	}
	client, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		client = r.RemoteAddr
	}
	answer := review{APIVersion: asked.APIVersion, Kind: asked.Kind, Response: &verdict{UID: asked.Request.UID}}
	answer.Response.Status.Message = "talk denies a request of " + client
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // the client reports the failure
}
