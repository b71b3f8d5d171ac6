package cni

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

// plugin is one run of the program.
type plugin struct {
	out   io.Writer
	links linkType
	log   *slog.Logger
}

// Main runs the command in the environment and returns the exit code.
func Main(about string) int {
	// Some runtimes send SIGTERM first after a timeout: the plugin then undoes its changes.
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
	command := os.Getenv("CNI_COMMAND")
	conf := &netConf{}
	if command != "" && command != "VERSION" {
		data, failed := readConf(os.Stdin)
		if failed != nil {
			return "", failed
		}
		if conf, failed = parseConf(data); failed != nil {
			return "", failed
		}
		if err := replaceStdin(data); err != nil {
			return conf.CNIVersion, failure(types.ErrIOFailure, err, "")
		}
	}
	with := func(run handler) func(*skel.CmdArgs) error {
		return func(args *skel.CmdArgs) error { return p.logged(ctx, command, conf, args, run) }
	}
	return conf.CNIVersion, skel.PluginMainFuncsWithError(skel.CNIFuncs{
		Add:    with(p.add),
		Del:    with(p.del),
		Check:  with(p.check),
		Status: with(p.status),
		GC:     with(p.gc),
	}, version.PluginSupports("0.3.1", "0.4.0", "1.0.0", "1.1.0"), about)
}

// handler implements one command.
type handler func(context.Context, *netConf, *skel.CmdArgs) error

// logged runs a command and logs it. Runtimes call STATUS and CHECK frequently, so only their failures are logged.
func (p *plugin) logged(ctx context.Context, command string, conf *netConf, args *skel.CmdArgs, run handler) error {
	log, closeLog := openLog(conf, command, args)
	defer closeLog()
	p.log = log
	begin := time.Now()
	if err := run(ctx, conf, args); err != nil {
		log.Error("The command failed", "duration", time.Since(begin), "error", err)
		return err
	}
	level := slog.LevelInfo
	if command == "STATUS" || command == "CHECK" {
		level = slog.LevelDebug
	}
	log.Log(ctx, level, "The command succeeded", "duration", time.Since(begin))
	return nil
}

// replaceStdin makes skel, which reads without a limit, read the data that was read within the limit.
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
