package kube

import (
	"context"
	"sync"
	"time"

	"github.com/skep-dev/skep/agent/readers/csi"
)

// pluginAgain is how long a plug-in waits that could not answer the kubelet.
const pluginAgain = 10 * time.Second

// ServeVolumes gives pods maps in volumes, until the context ends. Where that fails, it is logged and tried again: nothing that runs
// depends on it. Without Options.Node.Mounter it does nothing.
func (a *Agent) ServeVolumes(ctx context.Context) {
	if a.volumes == nil {
		return
	}
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { a.volumes.Run(ctx) })
	all.Go(func() { a.serveDriver(ctx, csi.Skep) })
	if a.opts.BpfmanVolumes {
		all.Go(func() { a.serveDriver(ctx, csi.Bpfman) })
	}
}

// serveDriver answers the kubelet as one driver, until the context ends.
func (a *Agent) serveDriver(ctx context.Context, d csi.Driver) {
	plugin := csi.New(csi.Options{Driver: d, Kubelet: a.opts.Kubelet, Node: a.opts.NodeName, Version: a.opts.Version, Volumes: a.volumes, Log: a.opts.Log})
	for ctx.Err() == nil {
		if err := plugin.Serve(ctx); err != nil {
			a.opts.Log.Error("pods get no maps in volumes", "driver", d.Name, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pluginAgain):
		}
	}
}
