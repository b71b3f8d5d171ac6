package kube

import (
	"context"
	"io"
	"net"
)

// Forward forwards a port of 127.0.0.1 on the machine to the API server until the program ends, and writes a kubeconfig for that port.
func (c *Cluster) Forward(kubeconfig string) error {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go c.forward(conn)
		}
	}()
	return c.writeKubeconfig(kubeconfig, "https://"+listener.Addr().String(), AdminToken, "default")
}

// forward copies both directions until either one ends. It drops errors: kubectl reports broken connections.
func (c *Cluster) forward(client net.Conn) {
	defer client.Close()
	server, err := c.Dial(context.Background(), "tcp4", net.JoinHostPort(apiIPv4, securePort))
	if err != nil {
		return
	}
	defer server.Close()
	ended := make(chan struct{}, 2)
	for _, pair := range [][2]net.Conn{{client, server}, {server, client}} {
		go func() {
			_, _ = io.Copy(pair[0], pair[1])
			ended <- struct{}{}
		}()
	}
	<-ended
}
