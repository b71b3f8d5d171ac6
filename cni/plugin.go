package cni

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

// plugin is one run of the program.
type plugin struct {
	out   io.Writer
	links linkType
}

// Main does what the environment asks for and returns the exit status.
func Main(about string) int {
	// A runtime that loses patience sends SIGTERM first, if it is kind: then what was begun is undone.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	p := &plugin{out: os.Stdout, links: veth{}}
	cniVersion, failed := p.main(ctx, about)
	if failed == nil {
		return 0
	}
	printError(os.Stdout, cniVersion, failed)
	return 1
}

func (p *plugin) main(ctx context.Context, about string) (cniVersion string, failed *types.Error) {
	if cmd := os.Getenv("CNI_COMMAND"); cmd != "" && cmd != "VERSION" {
		data, failed := readConf(os.Stdin)
		if failed != nil {
			return "", failed
		}
		conf, failed := parseConf(data)
		if failed != nil {
			return "", failed
		}
		cniVersion = conf.CNIVersion
		if err := replaceStdin(data); err != nil {
			return cniVersion, failure(types.ErrIOFailure, err, "")
		}
	}
	with := func(f func(context.Context, *skel.CmdArgs) error) func(*skel.CmdArgs) error {
		return func(args *skel.CmdArgs) error { return f(ctx, args) }
	}
	return cniVersion, skel.PluginMainFuncsWithError(skel.CNIFuncs{
		Add:    with(p.add),
		Del:    with(p.del),
		Check:  with(p.check),
		Status: with(p.status),
		GC:     with(p.gc),
	}, version.PluginSupports("0.3.1", "0.4.0", "1.0.0", "1.1.0"), about)
}

// replaceStdin lets skel, which reads without a limit, read what has been read within it.
func replaceStdin(data []byte) error {
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	go func() {
		_, _ = w.Write(data) // skel reads all of it, or the program ends
		_ = w.Close()
	}()
	os.Stdin = r
	return nil
}
