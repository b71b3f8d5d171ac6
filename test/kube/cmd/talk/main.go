// Command talk is both ends of the traffic of tests, on machines and, as /bin/talk, in an image of its own.
//
//	talk serve [-dns NAME=ADDRESS] [-drain D] PORT...
//	                                          answer on TCP and UDP ports, naming server and client; end on SIGTERM, once no connection has asked for D
//	talk loop [-every D] [-within D] TARGET...
//	                                          talk to all targets until the end, and print what came of it twice a second
//	talk ask [-within D] TARGET...            ask all targets at once, one question each, and print the answers
//	talk resolve NAME                         look up an address as programs do
//	talk api PATH                             read from the API server as clients inside a cluster do
//
// A target is tcp://ADDRESS:PORT, a connection for each question; tcp-kept://ADDRESS:PORT, one for all; udp://ADDRESS:PORT, one socket that is not connected; or
// udp-connected://ADDRESS:PORT, one that is, and is opened again when the kernel says that it failed.
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
		return errors.New("want serve, loop, ask, resolve or api, and what")
	}
	flags := flag.NewFlagSet("talk", flag.ExitOnError)
	zone := flags.String("dns", "", "`name=address` that the first UDP port resolves")
	drain := flags.Duration("drain", 0, "after SIGTERM, time without a question of a connection before the server ends")
	every := flags.Duration("every", 50*time.Millisecond, "pause between the questions to a target")
	within := flags.Duration("within", answerWithin, "time for the answer of a connection")
	_ = flags.Parse(args[1:]) // it exits
	switch rest := flags.Args(); args[0] {
	case "serve":
		return serve(*zone, *drain, rest)
	case "loop":
		return loop(*every, *within, rest)
	case "ask":
		return ask(*within, rest)
	case "resolve":
		addresses, err := net.DefaultResolver.LookupNetIP(context.Background(), "ip4", rest[0])
		fmt.Println(addresses)
		return err
	case "api":
		return api(rest[0])
	}
	return fmt.Errorf("no %q: want serve, loop, ask, resolve or api", args[0])
}

// ask asks all targets at the same time, once, and prints the answers in their order; the error says which did not answer.
func ask(within time.Duration, targets []string) error {
	answers, failures := make([]string, len(targets)), make([]error, len(targets))
	var asking sync.WaitGroup
	for i, target := range targets {
		asking.Go(func() {
			c, err := newClient(target, within)
			if err == nil {
				answers[i], err = c.ask(1)
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

// api uses what kubelet gives every pod: where the API server is, whom it may trust, and a token.
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
