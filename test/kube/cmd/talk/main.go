// Command talk is client and server of the tests' traffic. It runs on machines and as /bin/talk in a separate image.
//
//	talk serve [-dns NAME=ADDRESS] [-drain D] PORT...
//	                                          answer on TCP and UDP ports with server and client name; exit after SIGTERM and D without requests
//	talk loop [-every D] [-within D] TARGET...
//	                                          send requests to all targets until the end, and print counts twice a second
//	talk ask [-within D] TARGET...            send one request to each target concurrently, and print the answers
//	talk resolve NAME                         resolve a name with the system's resolver
//	talk refuse -certificate PEM PORT         serve a validating webhook that denies all requests
//	talk api PATH                             read from the API server as clients inside a cluster do
//
// A target is tcp://ADDRESS:PORT, a connection per request; tcp-kept://ADDRESS:PORT, one connection for all requests; udp://ADDRESS:PORT, one unconnected
// socket; or udp-connected://ADDRESS:PORT, one connected socket, which talk opens again after an error of the kernel.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "talk:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return errors.New("want serve, loop, ask, resolve, refuse or api, and its arguments")
	}
	flags := flag.NewFlagSet("talk", flag.ExitOnError)
	zone := flags.String("dns", "", "`name=address` that the first UDP port resolves")
	drain := flags.Duration("drain", 0, "after SIGTERM, time without a request on a connection before the server ends")
	every := flags.Duration("every", 50*time.Millisecond, "pause between the requests to a target")
	within := flags.Duration("within", answerWithin, "time for the answer of a connection")
	certificate := flags.String("certificate", "", "certificate and private `PEM` of the webhook")
	_ = flags.Parse(args[1:]) // exits on an error
	switch rest := flags.Args(); args[0] {
	case "serve":
		return serve(*zone, *drain, rest)
	case "loop":
		return loop(*every, *within, rest)
	case "ask":
		return requestAll(*within, rest)
	case "resolve":
		addresses, err := net.DefaultResolver.LookupNetIP(context.Background(), "ip4", rest[0])
		fmt.Println(addresses)
		return err
	case "refuse":
		return refuse(*certificate, rest[0])
	case "api":
		return api(rest[0])
	}
	return fmt.Errorf("no %q: want serve, loop, ask, resolve, refuse or api", args[0])
}

// requestAll sends one request to each target concurrently and prints the answers in the order of targets. The error names the targets without an answer.
func requestAll(within time.Duration, targets []string) error {
	answers, failures := make([]string, len(targets)), make([]error, len(targets))
	var asking sync.WaitGroup
	for i, target := range targets {
		asking.Go(func() {
			c, err := newClient(target, within)
			if err == nil {
				c.lost = min(within, onlyDatagram)
				answers[i], err = c.request(1)
			}
			if err != nil {
				failures[i] = fmt.Errorf("%s: %w", target, err)
			}
		})
	}
	asking.Wait()
	for i, answer := range answers {
		if failures[i] == nil {
			fmt.Println(answer)
		}
	}
	return errors.Join(failures...)
}

// api uses the configuration that kubelet gives every pod: the API server's address, the CA certificate and a token.
func api(path string) error {
	const dir = "/var/run/secrets/kubernetes.io/serviceaccount/"
	token, err := os.ReadFile(dir + "token")
	if err != nil {
		return err
	}
	authority, err := os.ReadFile(dir + "ca.crt")
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	client := http.Client{Timeout: answerWithin, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	url := "https://" + net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")) + path
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+string(token))
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", url, response.Status)
	}
	_, err = io.Copy(os.Stdout, response.Body)
	return err
}
